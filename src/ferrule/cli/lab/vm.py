"""``ferrule lab vm``: a profile's hosts as virtual machines with real kernels, joined by emulated USB4 cables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.complete import vm_hosts
from ferrule.cli.flags import AsJson, LabName, LabProfile
from ferrule.cli.output import new_table, print_json
from ferrule.errors import ConfigError
from ferrule.lab.usb4.messages import CableState
from ferrule.lab.vm import control, once
from ferrule.lab.vm.faults import FAULT_ARGUMENTS
from ferrule.lab.vm.kernel.debug import DEBUG_KERNELS
from ferrule.lab.vm.options import KERNELS, VmOptions
from ferrule.lab.vm.status import VmStatus

UP_EXAMPLES = (
    "Examples:\n\nferrule lab vm up two-strix\n\nferrule lab vm up two-strix --kernel 6.12 --rdma\n\n"
    "ferrule lab vm up two-strix --module ./my_driver.ko --trace cable.pcapng"
)
RUN_EXAMPLES = (
    "Examples:\n\nferrule lab vm run two-strix -- ping\n\nferrule lab vm run two-strix -- iperf3\n\n"
    "ferrule lab vm run two-strix --rdma -- ibv_devinfo\n\nferrule lab vm run two-strix --driver -- ib_write_lat\n\n"
    "ferrule lab vm run two-strix --peer 'nc -l -p 9000' -- sh -c 'echo hello | nc $PEER 9000'"
)
FAULT_EXAMPLES = (
    "Examples:\n\nferrule lab vm fault two-strix cable0 unplug\n\nferrule lab vm fault two-strix cable0 replug"
)

app = typer.Typer(
    no_args_is_help=True, help="The same labs as virtual machines: real kernels, and USB4 cables without hardware."
)

DEFAULT = VmOptions()
Host = Annotated[str, typer.Argument(help="Which host.", autocompletion=vm_hosts)]
Kernel = Annotated[
    str, typer.Option(metavar="NAME|SUITE", help=f"{', '.join([*KERNELS, *DEBUG_KERNELS])}, or a Debian suite.")
]
Cpus = Annotated[int, typer.Option(min=1, help="Processors of each host.")]
Memory = Annotated[int, typer.Option(metavar="MIB", min=256, help="Memory of each host, in MiB.")]
Modules = Annotated[
    list[str] | None, typer.Option(metavar="NAME|FILE.ko", help="Loaded at the start, too; may be repeated.")
]
Packages = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Programs of this Debian package, too.")]
Rdma = Annotated[bool, typer.Option("--rdma", help="Soft-RoCE on each cable, perftest and ibv_* tools.")]
Driver = Annotated[
    bool, typer.Option("--driver", help="Our RDMA driver, built for the hosts' kernel; perftest and ibv_* tools.")
]
Python = Annotated[bool, typer.Option("--python", help="This Python and `ferrule` itself in the guests.")]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", resolve_path=True, help="Write what crosses the cables: ferrule lab usb4 trace."),
]
Hops = Annotated[int, typer.Option(min=2, max=64, help="Rings of each host controller; Strix Halo has 3.")]


@app.command(epilog=UP_EXAMPLES)
def up(
    lab: LabProfile,
    name: LabName = None,
    kernel: Kernel = DEFAULT.kernel,
    cpus: Cpus = DEFAULT.cpus,
    memory: Memory = DEFAULT.memory_mb,
    module: Modules = None,
    package: Packages = None,
    rdma: Rdma = False,
    driver: Driver = False,
    python: Python = False,
    trace: Trace = None,
    hops: Hops = DEFAULT.hops,
    as_json: AsJson = False,
) -> None:
    """Boot a lab's hosts and join them; they stay until `ferrule lab vm down`.

    Needs Debian on x86-64 and its package archive, no root and no KVM; nothing is installed.
    """
    given = _modules(module), tuple(package or ())
    options = VmOptions(kernel, cpus, memory, *given, rdma, driver, python, str(trace or ""), hops)
    _fetch(options)
    status = control.up(lab, options, name=name)
    if as_json:
        print_json(status)
        return
    console = Console()
    _show(console, status)
    console.print(f"\nferrule lab vm run {status.name} -- ping", highlight=False)


@app.command(epilog=RUN_EXAMPLES)
def run(
    lab: LabProfile,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What runs, and its arguments.")],
    on: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where; by default on the first host.", autocompletion=vm_hosts)
    ] = None,
    peer: Annotated[str, typer.Option(metavar="COMMAND", help="Runs on the peer meanwhile, as a server does.")] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For the command.")] = 600,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until all cables are up.")] = True,
    kernel: Kernel = DEFAULT.kernel,
    cpus: Cpus = DEFAULT.cpus,
    memory: Memory = DEFAULT.memory_mb,
    module: Modules = None,
    package: Packages = None,
    rdma: Rdma = False,
    driver: Driver = False,
    python: Python = False,
    trace: Trace = None,
    hops: Hops = DEFAULT.hops,
) -> None:
    """Run a command on a host, when the cables are up; its exit status is this one's.

    On the lab if it is up (`ferrule lab vm up`), else on one that is booted for it and ended with it. In the command,
    {peer} and {peer_address} are the host at the other end of the first cable, and programs find them in PEER and
    PEER_ADDRESS; hosts know each other by name. A lone `ping`, `iperf3` or program of perftest (ib_write_lat) goes to
    the peer.
    """
    given = _modules(module), tuple(package or ())
    options = VmOptions(kernel, cpus, memory, *given, rdma, driver, python, str(trace or ""), hops)
    place = once.find(lab)
    if place is None:
        _fetch(options)
    elif options != DEFAULT:
        raise ConfigError(f"the lab {place} is up as it is; end it, or leave out the options of its machines")
    raise typer.Exit(once.run(lab, options, command, on=on, peer_command=peer, timeout=timeout, wait=wait))


@app.command(epilog="Examples:\n\nferrule lab vm shell two-strix\n\nferrule lab vm shell two-strix strix-2 -- dmesg -w")
def shell(
    lab: LabProfile,
    host: Annotated[
        str | None, typer.Argument(help="Where; by default on the first host.", autocompletion=vm_hosts)
    ] = None,
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="Instead of a shell.")] = None,
) -> None:
    """A shell, or a program that needs a terminal, on a host.

    On the lab if it is up, else on one that is booted for it and ended with it.
    """
    if once.find(lab) is None:
        _fetch(DEFAULT)
    raise typer.Exit(once.shell(lab, host, command or ["bash", "-i"]))


@app.command(
    epilog=FAULT_EXAMPLES + "\n\nFaults:\n\n" + "\n\n".join(f"{kind}: {what}" for kind, what in FAULT_ARGUMENTS.items())
)
def fault(
    lab: LabProfile,
    cable: Annotated[str, typer.Argument(help="A cable's name, such as cable0.")],
    words: Annotated[list[str], typer.Argument(metavar="FAULT...", help="What happens to it.")],
    sender: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="HOST", help="Only to what this host sends, or its controller.", autocompletion=vm_hosts
        ),
    ] = None,
) -> None:
    """Let something happen to a cable while it is in use."""
    now = control.fault(_up(lab), cable, words, sender)
    typer.echo(f"{cable}: {_health(now)}")


@app.command()
def reboot(lab: LabProfile, host: Host) -> None:
    """Cut a host's power, and boot it again."""
    control.reboot(_up(lab), host)


@app.command()
def console(lab: LabProfile, host: Host) -> None:
    """Print what a host said on its console, its kernel's messages among it."""
    typer.echo(control.console(_up(lab), host), nl=False)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the labs of virtual machines that are up."""
    found = control.labs()
    if as_json:
        print_json(found)
        return
    for each in found:
        _show(Console(), each)
    if not found:
        typer.echo("no lab is up; start one, for example: ferrule lab vm up two-strix")


@app.command(epilog="Examples:\n\nferrule lab vm down two-strix\n\nferrule lab vm down --all")
def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Labs to end.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="End all.")] = False,
) -> None:
    """End labs, with all that runs in them."""
    if not names and not everything:
        raise ConfigError("say which lab to end, or --all; `ferrule lab vm status` shows them")
    ended = control.down(() if everything else [_up(name) for name in names or ()])
    typer.echo(f"ended {', '.join(ended)}" if ended else "no lab was up")


def _modules(names: list[str] | None) -> tuple[str, ...]:
    """Files by their whole paths: another process reads them."""
    return tuple(str(Path(one).resolve()) if one.endswith(".ko") else one for one in names or ())


def _up(lab: str) -> str:
    """The name of a lab that is up, by it or by its profile."""
    name = once.find(lab)
    if name is None:
        raise ConfigError(f"no lab of {lab} is up; start it: ferrule lab vm up {lab}")
    return name


def _fetch(options: VmOptions) -> None:
    """Fetch what is missing, and say so meanwhile."""
    message = "Fetching kernel, emulator and programs (minutes the first time)"
    if options.kernel in DEBUG_KERNELS:
        message = f"Compiling the kernel {options.kernel} and fetching programs (half an hour the first time)"
    with Console(stderr=True).status(message):
        options.prepare()


def _show(console: Console, status: VmStatus) -> None:
    console.print(f"[bold]{status.name}[/bold]: {status.title}", highlight=False)
    table = new_table("cable", "made for", "hosts", "addresses", "now", padding=(0, 1), pad_edge=False)
    for cable in status.cables:
        hosts, addresses = " ".join(cable.ends), " ".join(cable.ends.values())
        table.add_row(cable.name, cable.made_for, hosts, addresses, _health(cable))
    console.print(table, highlight=False)


def _health(cable: CableState) -> str:
    """Whether a cable's link is up, and what is wrong with it."""
    width = f" at {cable.lanes} x {cable.gbps} Gb/s" if cable.lanes else ""
    return ", ".join([f"link {cable.link}{width}", *cable.faults])
