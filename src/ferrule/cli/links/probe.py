"""``ferrule links probe``: what the cables between hosts really do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ferrule.cli.complete import probed_hosts
from ferrule.cli.doctor.text import EXIT_CODES, show_report
from ferrule.cli.extras import needs
from ferrule.cli.flags import RemoteCommand
from ferrule.cli.links.measured import pair_parts
from ferrule.cli.output import check_folders, print_json, write_file
from ferrule.errors import ConfigError
from ferrule.hardware import shipped
from ferrule.lab.netns import control
from ferrule.links import Finding, MeasuredLinks, MeasuredPair, examine, worst
from ferrule.links.doctor import FindingJson
from ferrule.probe import QUICK, Effort, End, in_standing_lab, new_key, over_ssh, probe_pair, this_machine, to_csv

EXAMPLES = (
    "Examples:\n\nferrule links probe strix-b\n\nferrule links probe strix-b strix-c --mesh --plot links.png\n\n"
    "ferrule links probe --lab two-strix\n\nferrule lab shell strix-1 -- ferrule links probe strix-2"
)
_PAIR_SECONDS = 150.0
"""No agent lives longer than so long for each pair of hosts."""


@dataclass
class _Wanted:
    """Hosts that are wanted, pairs of them, and what is known of their cables."""

    ends: list[End]
    pairs: list[tuple[int, int]]
    speeds: dict[str, float] = field(default_factory=dict)


def probe(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...",
            help="As for ssh. In a host of a lab, or with --lab: hosts of that lab.",
            autocompletion=probed_hosts,
        ),
    ] = None,
    lab: Annotated[str | None, typer.Option(metavar="NAME", help="Between hosts of this lab: all, or HOST...")] = None,
    mesh: Annotated[bool, typer.Option("--mesh", help="Also between the hosts, not only from this one.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A second for each link, and coarser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print numbers and findings as JSON.")] = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the numbers.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw latency and bandwidth, such as links.png.")
    ] = None,
    remote_command: RemoteCommand = "ferrule",
) -> None:
    """Measure latency and bandwidth of every link between hosts, and say what is wrong with them.

    Loads the links for some seconds each; nothing else should use them meanwhile. Exit code: 0 all is well or notes
    only, 1 warnings, 2 errors; 8 a host could not be reached.
    """
    check_folders((csv_file, plot_file))
    if plot_file is not None:
        with needs("bench", "links probe --plot"):
            import matplotlib  # noqa: F401 - better now than after the measurement
    wanted = _wanted(hosts or [], lab, mesh, remote_command)
    console = Console(stderr=as_json)
    known = MeasuredLinks()
    pairs: list[MeasuredPair] = []
    findings: list[Finding] = []
    with console.status("Starting on every host") as status:
        for pair in _measure(wanted, QUICK if quick else Effort(), lambda line: status.update(f"Measuring {line}")):
            pairs.append(pair)
            findings += examine(pair, known.find(*pair.hosts))
            known.store(pair)
    if as_json:
        told = [FindingJson.of(one) for one in findings]
        print_json({"worst": worst(tuple(findings)), "pairs": pairs, "findings": told})
    else:
        for pair in pairs:
            for part in pair_parts(pair):
                console.print(part, highlight=False)
        show_report(console, (), findings)
    write_file(csv_file, to_csv(pairs), err=True)
    if plot_file is not None:
        from ferrule.bench.links_plot import plot

        plot(pairs, plot_file)
        typer.echo(f"wrote {plot_file}", err=True)
    raise typer.Exit(EXIT_CODES[worst(tuple(findings))])


def _wanted(hosts: Sequence[str], lab: str | None, mesh: bool, remote_command: str) -> _Wanted:
    place = control.here()
    if lab is None and not hosts:
        raise ConfigError("name a host as for ssh: ferrule links probe strix-b; or a lab that is up: --lab two-strix")
    if lab is not None:
        name = control.choose(lab)
        status = control.status(name)
        names = list(hosts) or [host.name for host in status.hosts]
        ends = [in_standing_lab(name, host) for host in names]
        joined = [set(cable.hosts) for cable in status.cables]
        pairs = [
            (one, other)
            for one, other in combinations(range(len(names)), 2)
            if any({names[one], names[other]} <= cable for cable in joined)
        ]
        if not pairs:
            raise ConfigError(f"--lab {name}: no cable joins {', '.join(names)}; name two hosts or more that share one")
        return _Wanted(ends, pairs, _lab_speeds(name))
    if place is not None:
        ends = [this_machine(), *(in_standing_lab(place.lab, host) for host in hosts)]
        speeds = _lab_speeds(place.lab)
    else:
        ends = [this_machine(), *(over_ssh(host, remote_command) for host in hosts)]
        speeds = {}
    every = combinations(range(len(ends)), 2)
    return _Wanted(ends, list(every) if mesh else [(0, other) for other in range(1, len(ends))], speeds)


def _lab_speeds(lab: str) -> dict[str, float]:
    """Nominal speeds of a lab's cables, by interface, as far as their kind is one that ships with Ferrule."""
    kinds = shipped().cables
    found = {}
    for cable in control.status(lab).cables:
        kind = kinds.get(cable.kind)
        if kind is not None and kind.shaping.rate is not None:
            found[cable.name] = kind.shaping.rate
    return found


def _measure(wanted: _Wanted, effort: Effort, say: Callable[[str], None]) -> Iterator[MeasuredPair]:
    key = new_key()
    with ExitStack() as started:
        for end in wanted.ends:
            started.enter_context(end).launch(key, _PAIR_SECONDS * len(wanted.pairs))
        for end in wanted.ends:
            end.meet()
        for one, other in wanted.pairs:
            yield probe_pair(wanted.ends[one], wanted.ends[other], effort, say, speeds=wanted.speeds)


def probe_server() -> None:
    """Run the end of `ferrule links probe` that it starts on the other host; not for people."""
    from ferrule.probe.worker import main

    main()
