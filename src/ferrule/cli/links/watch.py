"""``ferrule links show --watch``: what goes through the interfaces, every second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ferrule.cli.output import new_table
from ferrule.links import Traffic, read_counters, traffic
from ferrule.units import format_bytes

_SECONDS = 1.0


def watch(console: Console, pause: Callable[[float], None] = time.sleep) -> None:
    """Until Ctrl-C. On a terminal the table stays in its place; elsewhere a new one follows each second."""
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for now in _readings(pause):
                    live.update(traffic_table(now), refresh=True)
        else:
            for now in _readings(pause):
                console.print(traffic_table(now), highlight=False)
    except KeyboardInterrupt:
        return


def _readings(pause: Callable[[float], None]) -> Iterator[tuple[Traffic, ...]]:
    before, at = read_counters(), time.monotonic()
    while True:
        pause(_SECONDS)
        after, now = read_counters(), time.monotonic()
        yield traffic(before, after, max(now - at, 1e-3))
        before, at = after, now


def traffic_table(now: Sequence[Traffic]) -> Table:
    """A row per interface that has ever carried anything; faults of this second are red."""
    table = new_table("interface", ">in", ">out", ">errors and drops", ">since the start", header_style="dim")
    for one in sorted(now, key=lambda one: -(one.received + one.sent)):
        faults = f"[bold red]{one.faults}[/]" if one.faults else "0"
        rates = (f"{format_bytes(round(rate))}/s" for rate in (one.received, one.sent))
        table.add_row(one.name, *rates, faults, str(one.all_faults))
    return table
