"""``ferrule launch``."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ferrule.cli import complete
from ferrule.cli.serving.model import Encrypt
from ferrule.config import environment
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from ferrule.launch import JobResult, Launcher, Place, Task

EXAMPLES = (
    "Examples:\n\nferrule launch -n 4 train.py --epochs 3\n\nferrule launch -n 2 -m my_package.train\n\n"
    "ferrule launch --hosts strix-a,strix-b:2 -- python train.py\n\nferrule launch --hostfile hosts.toml train.py\n\n"
    "ferrule launch --cluster -n 4 train.py"
)
PASS_ON = {"allow_interspersed_args": False}
"""Context settings of click that leave options behind the command to the command."""

Ranks = Annotated[int | None, typer.Option("-n", "--ranks", help="How many ranks; by default as many as slots.")]
Hosts = Annotated[
    str | None,
    typer.Option(metavar="A,B:2", help="Hosts as ssh knows them, each with its slots.", autocompletion=complete.hosts),
]
Hostfile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Hosts in TOML, in MLX's JSON, or as lines: HOST slots=N.")
]
Python = Annotated[str | None, typer.Option(metavar="PATH", help="The Python with Ferrule on other hosts.")]
Ssh = Annotated[str, typer.Option(metavar="COMMAND", help="How to call ssh.")]
ConnectTimeout = Annotated[float, typer.Option(help="Seconds to try to reach a host.", min=1)]


app = typer.Typer()


@app.command(epilog=EXAMPLES, context_settings=PASS_ON)
def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT.py|COMMAND [ARGS]...", help="What every rank runs.", show_default=False),
    ],
    ranks: Ranks = None,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="The command is a Python module.")] = False,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="A variable for all ranks; repeatable.")
    ] = None,
    encrypt: Encrypt = None,
    cwd: Annotated[str | None, typer.Option(help="Where to run, on all hosts; by default here.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Also write rank-N.log into this folder.")] = None,
    python: Python = None,
    ssh: Ssh = "ssh",
    connect_timeout: ConnectTimeout = 10,
    grace: Annotated[float, typer.Option(help="Seconds that ranks have to end after Ctrl-C.", min=0)] = 5,
    cluster: Annotated[bool, typer.Option("--cluster", help="On the hosts of the cluster: see ferrule up.")] = False,
    ray: Annotated[bool, typer.Option("--ray", help="On the nodes of the cluster's Ray, or of $RAY_ADDRESS.")] = False,
    ray_address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="On the nodes of this Ray.")] = None,
    mlx: Annotated[
        Literal["own", "ferrule"],
        typer.Option(help="What mx.distributed.init() takes where no backend is named: MLX's own ring, or Ferrule."),
    ] = "own",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run where, and run nothing.")] = False,
) -> None:
    """Run a program as several ranks, here and on other hosts: over ssh, by agents, by Ray.

    Sets what Ferrule, torch, MLX and NCCL or RCCL need to find each other. Output is prefixed by rank; when one rank
    fails, all are ended, and its exit code is that of the command.
    """
    from ferrule.launch import Launcher, RankOutput
    from ferrule.launch.request import chosen_variables, make_task

    variables = chosen_variables(env or [], os.environ)
    if encrypt is not None:
        variables["FERRULE_ENCRYPT"] = str(int(encrypt))
    task = make_task(command, cwd or str(Path.cwd()), variables, module=module, mlx=mlx)
    if ray or ray_address is not None:
        where = _ray_places(ray_address, ranks, hosts, hostfile, python)
    elif cluster:
        where = _cluster_places(ranks, hosts, hostfile, python)
    else:
        where = places(ranks, hosts, hostfile, python, ssh, connect_timeout)
    if dry_run:
        _show_plan(where, ranks, task)
        return
    sinks = {1: sys.stdout, 2: sys.stderr}
    colours = {stream: sink.isatty() and "NO_COLOR" not in os.environ for stream, sink in sinks.items()}
    launcher = Launcher(
        where,
        ranks,
        key=os.environ.get("FERRULE_KEY"),
        output=lambda rank, stream, data: output(rank, stream, data),
        say=warn,
        connect_seconds=connect_timeout,
        grace=grace,
    )
    output = RankOutput(launcher.size, {stream: sink.buffer for stream, sink in sinks.items()}, colours, log_dir)
    try:
        with launcher, _signals_to(launcher):
            try:
                launcher.connect()
                result = launcher.run(task)
            except KeyboardInterrupt:
                raise typer.Exit(128 + (launcher.signalled or signal.SIGINT)) from None
            finally:
                output.finish()
            raise typer.Exit(_verdict(launcher, result))
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain about it once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None


def places(
    ranks: int | None, hosts: str | None, hostfile: Path | None, python: str | None, ssh: str, seconds: float
) -> list[Place]:
    """Places of the ranks as the options say. Raises `ConfigError`."""
    from ferrule.launch import place_for
    from ferrule.launch.request import choose_hosts, forwarded

    entries = choose_hosts(ranks, hosts, hostfile, python=python)
    own = [replace(entry, env={**forwarded(os.environ), **entry.env}) for entry in entries]
    return [place_for(entry, program=shlex.split(ssh), seconds=int(seconds)) for entry in own]


def _cluster_places(ranks: int | None, hosts: str | None, hostfile: Path | None, python: str | None) -> list[Place]:
    """Raises `ConfigError` and `ClusterError`."""
    from ferrule.cluster.home import choose_cluster
    from ferrule.launch.by_agent import member_places
    from ferrule.launch.request import forwarded

    _refuse_ssh(hostfile, python)
    home = choose_cluster(environment().get("FERRULE_CLUSTER"))
    return member_places(home, ranks, hosts, forwarded(os.environ))


def _ray_places(
    address: str | None, ranks: int | None, hosts: str | None, hostfile: Path | None, python: str | None
) -> list[Place]:
    """Raises `ConfigError`, `ClusterError` and `LaunchError`."""
    from ferrule.cli.cluster import ray as cluster_ray
    from ferrule.cluster.home import choose_cluster
    from ferrule.launch.ray_nodes import ray_places
    from ferrule.launch.request import forwarded

    _refuse_ssh(hostfile, python)
    cluster_ray.check_installed()
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        ours = cluster_ray.connection(choose_cluster(environment().get("FERRULE_CLUSTER")))
        address = ours["RAY_ADDRESS"]
        os.environ.update(ours)  # for what is started to talk to Ray
    return ray_places(address, ranks, hosts, forwarded(os.environ))


def _refuse_ssh(hostfile: Path | None, python: str | None) -> None:
    if hostfile is not None or python is not None:
        raise ConfigError("--hostfile and --python are for hosts over ssh; here the Python of agents, or of Ray, runs")


@contextmanager
def _signals_to(launcher: Launcher) -> Iterator[None]:
    """Signals go to the ranks; those that this process was told to ignore stay ignored."""
    from ferrule.launch import ENDING, PASSED_ON

    numbers = [number for number in (*ENDING, *PASSED_ON) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: launcher.signal(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _verdict(launcher: Launcher, result: JobResult) -> int:
    rank = result.first_failed
    if rank is None:
        return 0 if launcher.signalled is None else 128 + launcher.signalled
    if launcher.signalled is None:
        code = result.codes[rank]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        others = "; the others were stopped" if len(result.codes) > 1 else ""
        where = "" if launcher.job is None or launcher.job.alone else f" on {launcher.job.site(rank).entry.name}"
        typer.secho(f"error: rank {rank}{where} {how}{others}", err=True, fg="red")
    return result.exit_code


def warn(line: str) -> None:
    typer.secho(line, err=True, fg="yellow")


def _show_plan(where: list[Place], ranks: int | None, task: Task) -> None:
    from ferrule.launch.job import share_out

    shares = share_out([place.entry for place in where], ranks)
    size = sum(map(len, shares))
    for place, share in zip(where, shares, strict=True):
        if not share:
            continue
        entry = place.entry
        typer.echo(f"{entry.name}: {place.describe()}")
        python = entry.python or sys.executable
        words = shlex.join([word if word is not None else python for word in task.argv])
        variables = [f"{name}={value}" for name, value in {**entry.env, **task.env}.items()]
        for local, rank in enumerate(share):
            own = [f"RANK={rank}", f"LOCAL_RANK={local}", f"WORLD_SIZE={size}", *variables]
            typer.echo(f"  [{rank}] cd {shlex.quote(entry.cwd or task.cwd)} && {shlex.join(own)} {words}")
    typer.echo("The rest of the environment follows from the hosts; `ferrule env` shows it.")
