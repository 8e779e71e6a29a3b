"""Tables of measured links: for `ferrule links probe`, and as a matrix for `ferrule links show`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ferrule.cli.output import new_table
from ferrule.links import Bandwidth, MeasuredLink, MeasuredPair
from ferrule.units import format_bytes, format_seconds


def pair_parts(pair: MeasuredPair) -> Iterator[RenderableType]:
    """Latency and bandwidth of every link between two hosts, and of all together."""
    for link in pair.links:
        yield Text(f"{link.name}, tcp" if link.transport == "tcp" else link.name, style="bold")
        if link.latency:
            yield _latency(link)
        if link.bandwidth:
            yield _bandwidth(link)
        if not link.latency:
            yield Text("  nothing could be measured")
        yield Text("")
    if pair.together is not None:
        yield Text(f"{' ↔ '.join(pair.hosts)}, all links at once", style="bold")
        table = _rates(pair.hosts)
        _add(table, pair.together, "goodput", 1.0)
        yield table
        yield Text("")


def _latency(link: MeasuredLink) -> Table:
    table = _table("µs one way", *(f">{format_bytes(one.size)}" for one in link.latency))
    for name in ("minimum", "median", "p99"):
        numbers = (getattr(one, name) * 1e6 for one in link.latency)
        table.add_row(name, *(f"{number:.1f}" if number < 1000 else f"{number:.0f}" for number in numbers))
    return table


def _bandwidth(link: MeasuredLink) -> Table:
    table = _rates((link.ends[0].host, link.ends[1].host))
    for one in link.bandwidth:
        _add(table, one, "goodput", 1.0)
    if link.framing != 1.0:
        best = max(link.bandwidth, key=lambda one: one.forth + one.back)
        _add(table, best, "on the wire", link.framing)
    return table


def _rates(hosts: tuple[str, str]) -> Table:
    one, other = hosts
    return _table("Gb/s", ">streams", f">{one} → {other}", f">{other} → {one}", ">both at once", ">their sum")


def _add(table: Table, one: Bandwidth, what: str, factor: float) -> None:
    forth, back, both_forth, both_back = (
        rate * factor / 1e9 for rate in (one.forth, one.back, one.both_forth, one.both_back)
    )
    numbers = (f"{forth:.3g}", f"{back:.3g}", f"{both_forth:.3g} + {both_back:.3g}", f"{both_forth + both_back:.3g}")
    table.add_row(what, str(one.streams), *numbers)


def matrix(pairs: Sequence[MeasuredPair], now: float | None = None) -> Table:
    """Hosts by hosts: latency at the smallest size, Gb/s from the row's host to the column's, and how long ago."""
    now = time.time() if now is None else now
    hosts = list(dict.fromkeys(host for pair in reversed(pairs) for host in pair.hosts))
    table = _table("from, to", *hosts)
    table.title, table.title_justify, table.title_style = "Measured by ferrule links probe", "left", "bold"
    known = {pair.hosts: pair for pair in pairs} | {pair.turned.hosts: pair.turned for pair in pairs}
    for row in hosts:
        cells = (known.get((row, column)) for column in hosts)
        table.add_row(row, *("" if pair is None else _cell(pair, now) for pair in cells))
    return table


def _cell(pair: MeasuredPair, now: float) -> str:
    latency = pair.best_latency
    faults = sorted({link.fault for link in pair.links if link.fault})
    told = [] if latency is None else [format_seconds(latency), f"{pair.rates[0] / 1e9:.3g} Gb/s"]
    return ", ".join([*told, *faults, _ago(now - pair.at)])


def _ago(seconds: float) -> str:
    for limit, unit, name in ((90.0, 1.0, "s"), (5400.0, 60.0, "min"), (129600.0, 3600.0, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / unit:.0f} {name} ago"
    return f"{seconds / 86400:.0f} days ago"


def _table(*columns: str) -> Table:
    return new_table(*columns, header_style="dim")
