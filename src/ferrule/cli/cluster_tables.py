"""How `ferrule status` lays out the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from ferrule.units import format_bytes

_STYLES = {"here": "green", "up": "green", "lost": "bold red"}


def hosts_table(status: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each host. ``reports``: by host id, of those that answered."""
    table = Table(
        title=f"cluster {status['cluster']}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    for column in ("host", "state", "address", "devices", "free memory", "links", "load", "heat"):
        table.add_column(column, header_style="dim", no_wrap=column in ("host", "state"))
    for host in sorted(status["hosts"], key=lambda each: (each["state"] != "here", each["name"])):
        table.add_row(*_row(host, reports.get(host["host"])))
    return table


def _row(host: Mapping[str, Any], report: Mapping[str, Any] | None) -> list[Text | str]:
    state = Text(host["state"], style=_STYLES[host["state"]])
    if host["state"] == "lost":
        state += Text(f" {_since(host['heard_seconds'])}", style="dim")
    address = str(host["way"][0]) if host["way"] else next(iter(host["addresses"]), "-")
    if report is None:
        return [
            host["name"],
            state,
            address,
            Text(host["problem"] or "did not tell in time", style="dim"),
            "",
            "",
            "",
            "",
        ]
    devices = [f"{each['name']} {format_bytes(each['memory'])}" for each in report["devices"]]
    free = [format_bytes(each["free"]) for each in report["devices"]]
    heat = [f"{report['celsius']:.0f} °C"] if report["celsius"] is not None else []
    heat += [f"{report['watts']:.0f} W"] if report["watts"] is not None else []
    return [
        host["name"],
        state,
        address,
        "\n".join(devices),
        "\n".join(free),
        Text("\n").join(map(_link, report["links"])),
        f"{report['load']:.0%}",
        ", ".join(heat) or "-",
    ]


def _link(link: Mapping[str, Any]) -> Text:
    rate = f" {link['gb_s']:g} Gb/s" if link["gb_s"] else ""
    return Text(f"{link['name']}{rate}") if link["up"] else Text(f"{link['name']} down", style="yellow")


def _since(seconds: float | None) -> str:
    if seconds is None:
        return "never heard"
    return f"for {seconds:.0f} s" if seconds < 120 else f"for {seconds / 60:.0f} min"
