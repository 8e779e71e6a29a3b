"""Text layout of the findings of `ferrule doctor`."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ferrule.links import SEVERITIES, Finding, Inventory, Severity
from ferrule.links.doctor import relevant

STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan", "ok": "bold green"}
EXIT_CODES: dict[Severity, int] = {"error": 2, "warning": 1, "note": 0, "ok": 0}
_MAX_EVIDENCE = 6


def show_report(console: Console, inventories: Sequence[Inventory], findings: Sequence[Finding]) -> None:
    """Print `report`; its commands are never cut."""
    for part in report(inventories, findings):
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text) and part.no_wrap is True)


def report(inventories: Sequence[Inventory], findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Report: what was looked at, then the findings, the worst first; host names only with several hosts."""
    for one in inventories:
        yield _looked_at(one)
    yield _summary(findings)
    for finding in findings:
        yield Text("")
        yield from _finding(inventories, finding)


def _looked_at(one: Inventory) -> Text:
    machine = one.machine
    title = Text(machine.name or machine.tree, style="bold")
    system = ", ".join(filter(None, (machine.os_name, f"kernel {machine.kernel}" if machine.kernel else None)))
    ports = sum(len(device.ports) for device in one.rdma)
    shown = (device for device in one.netdevs if device.kind != "loopback")
    interfaces = sum(device.kind != "virtual" or bool(device.addresses) for device in shown)
    counted = (
        _count(len(one.peers), "USB4 or Thunderbolt cable"),
        _count(interfaces, "interface"),
        _count(ports, "RDMA port"),
        _count(len(one.pcie), "PCIe adapter"),
    )
    return title + Text(f"  {system}\nlooked at {', '.join(counted)}")


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _summary(findings: Sequence[Finding]) -> Text:
    counts = collections.Counter(one.severity for one in findings)
    if not counts:
        return Text("all is well", style=STYLES["ok"])
    told = [Text(_count(counts[one], one), style=STYLES[one]) for one in reversed(SEVERITIES) if counts[one]]
    return Text(", ").join(told)


def _finding(inventories: Sequence[Inventory], one: Finding) -> Iterator[RenderableType]:
    names = [] if len(inventories) < 2 or "↔" in one.subject else [", ".join(one.hosts)]
    title = Text(one.severity, style=STYLES[one.severity])
    title += Text(f"  {': '.join([*names, one.subject])}", style="bold") + Text(f"  {one.id}", style="dim")
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(style="dim", no_wrap=True, min_width=4)
    rows.add_column(overflow="fold")
    for where, line in one.evidence[:_MAX_EVIDENCE]:
        rows.add_row("read", Text(f"{where}: ", style="dim") + Text(line))
    if one.why:
        rows.add_row("why", Text(one.why))
    yield title
    yield Padding(Text(one.what), (0, 0, 0, 2))
    yield Padding(rows, (0, 0, 0, 2))
    yield from _cures(inventories, one)


def _cures(inventories: Sequence[Inventory], one: Finding) -> Iterator[RenderableType]:
    """Those for the systems that it is about; a command stands alone in its line, never cut, to be copied."""
    machines = [each.machine for each in inventories if (each.machine.name or each.machine.tree) in one.hosts]
    found = [cure for machine in machines for cure in relevant(one.cure, machine)] or list(one.cure)
    cures = list(dict.fromkeys(found))
    systems = {cure.system for cure in cures if cure.commands}
    said = ""
    for cure in cures:
        if cure.text != said:
            row = Table.grid(padding=(0, 1, 0, 0))
            row.add_row(Text("cure", style="dim"), Text(cure.text))
            yield Padding(row, (0, 0, 0, 2))
        said = cure.text
        where = f"# {cure.system}" if len(systems) > 1 and cure.commands else ""
        for line in filter(None, (where, *cure.commands)):
            yield Text(f"       {line}", style="dim" if line == where else "bold", no_wrap=True)
