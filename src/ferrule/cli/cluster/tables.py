"""Tables of `ferrule status` and `ferrule models`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ferrule.cli.output import new_table, wide_console
from ferrule.cluster.models import ModelRow
from ferrule.cluster.reports import ClusterStatus, HostReport, HostStatus, LinkReport, ReplicaStatus, ServerState
from ferrule.units import format_bytes

_STYLES = {
    "here": "green", "up": "green", "stopped": "yellow", "lost": "bold red",
    "ready": "green", "failed": "bold red", "unknown": "bold red", "waiting": "yellow", "recovering": "yellow",
}  # fmt: skip


def show(parts: Iterable[RenderableType]) -> None:
    """Tables as wide as they need to be where the output is no terminal."""
    console = wide_console()
    for part in parts:
        console.print(part, highlight=False)


def hosts_table(status: ClusterStatus, reports: Mapping[str, HostReport]) -> Iterator[RenderableType]:
    """A row for each host, and why some cannot be reached. ``reports``: by host id, of those that answered."""
    columns = ("!host", "!state", "address", "devices", "free memory", "links", "load", "heat")
    table = new_table(
        *columns, title=f"cluster {status.cluster}", title_justify="left", title_style="bold", header_style="dim"
    )
    hosts = sorted(status.hosts, key=lambda each: (each.state != "here", each.name))
    for host in hosts:
        table.add_row(*_row(host, reports.get(host.host)))
    yield table
    for host in hosts:
        if host.state == "stopped":
            yield Text(f"\n{host.name} was stopped there; it comes back by: ferrule up", style="dim")
        elif host.problem:
            yield Text(f"\n{host.name} cannot be reached: {host.problem}", style="dim")
        elif host.is_up and host.install_engine:
            yield Text(f"\n{host.name} runs no models; on it: {host.install_engine}", style="dim")
    if status.rivals:
        where = ", ".join(status.rivals)
        yield Text(
            f"\nthere is another cluster that is called {status.cluster}, too, on {where}: to make one of "
            "the two, leave one (ferrule leave) and join with what `ferrule token` prints in the other",
            style="yellow",
        )


def _row(host: HostStatus, report: HostReport | None) -> list[Text | str]:
    state = Text(host.state, style=_STYLES[host.state])
    if host.state in ("lost", "stopped"):
        state += Text(f" {_since(host.heard_seconds)}", style="dim")
    name = Text(host.name)  # not markup: another host chose it
    address = Text(str(host.reached_at[0]) if host.reached_at else next(iter(host.addresses), "-"))
    if report is None:
        return [name, state, address, *["-"] * 5]
    devices = [f"{each.name} {format_bytes(each.memory)}" for each in report.devices]
    free = [format_bytes(each.free) for each in report.devices]
    heat = [f"{report.celsius:.0f} °C"] if report.celsius is not None else []
    heat += [f"{report.watts:.0f} W"] if report.watts is not None else []
    return [
        name,
        state,
        address,
        Text("\n".join(devices)),
        "\n".join(free),
        Text("\n").join(map(_link, report.links)),
        f"{report.load:.0%}",
        ", ".join(heat) or "-",
    ]


def _link(link: LinkReport) -> Text:
    rate = f" {link.gb_s:g} Gb/s" if link.gb_s else ""
    return Text(f"{link.name}{rate}") if link.up else Text(f"{link.name} down", style="yellow")


def _since(seconds: float | None) -> str:
    if seconds is None:
        return "never heard"
    return f"for {seconds:.0f} s" if seconds < 120 else f"for {seconds / 60:.0f} min"


def models_table(rows: Sequence[ModelRow]) -> Iterator[RenderableType]:
    """A row for each model, of several behind one address one for that before, with the kind of its cache where that
    was asked for; and what is wrong with those that are not ready."""
    columns = ("!model", "!state", "!address", "!on", "split", "tok/s", "!recoveries")
    table = new_table(*columns, padding=(0, 1, 0, 0), header_style="dim")  # 80 columns
    for row in rows:
        several = row.wanted.models if row.wanted is not None else ()
        caches = {each.name: each.kv_cache for each in several}
        own = row.wanted.kv_cache if row.wanted is not None and not several else None
        _add(table, Text(row.name) + _cache(own), Text(row.address), Text(row.on), row)
        for each in row.models:
            pinned = Text(" pinned" if each.pinned else "", style="dim")
            _add(table, Text(f"  {each.name}") + pinned + _cache(caches.get(each.name)), Text(), Text(), each)
    yield table
    for row in rows:
        yield from _troubles(row.name, row)
        for each in row.models:
            yield from _troubles(each.name, each)


def _cache(kind: str | None) -> Text:
    return Text("" if kind in (None, "auto") else f" {kind} cache", style="dim")


def _split(row: ServerState | ReplicaStatus) -> str:
    return f"{row.strategy} on {', '.join(dict.fromkeys(row.hosts))}"


def _troubles(name: str, row: ServerState) -> Iterator[RenderableType]:
    if row.detail and row.state != "ready":
        yield Text(f"\n{name}: {row.detail}", style="dim")
    if row.note:
        yield Text(f"\n{name}: {row.note}", style="yellow")


def _add(table: Table, name: Text, address: Text, on: Text, row: ServerState) -> None:
    state = Text(row.state, style=_STYLES.get(row.state, ""))
    split = "\n".join(_split(each) for each in row.replicas or (row,) if each.hosts) or "-"
    recoveries = "-" if row.state in ("unknown", "unloaded") else str(row.recoveries)
    table.add_row(name, state, address, on, Text(split), _speed(row), recoveries)


def _speed(row: ServerState) -> str:
    if row.measured is None:
        return "-"
    return f"{row.measured:.1f}" + (f" ({row.predicted:.1f} predicted)" if row.predicted else "")
