"""A picture of the rows: latency and bus bandwidth over size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ferrule.bench.fabric.rows import Row
from ferrule.bench.ticks import log_ticks
from ferrule.units import format_bytes

_COLORS = {
    "ferrule-native": "#0b6e4f",
    "ferrule": "#2ca977",
    "ferrule-torch": "#8fd6b4",
    "gloo": "#d1495b",
    "openmpi": "#2e5aac",
    "mlx-ring": "#b07d12",
    "raw": "#888888",
}
_STYLES = {"shm": "-", "tcp": "--", "tcp-both": "-."}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG (or what the suffix of ``path`` says): a line of two panels per operation, dtype and ranks.

    Needs matplotlib. Rows without a size (barriers) are left out.
    """
    from matplotlib.figure import Figure

    panels = panels_of(rows)
    figure = Figure(figsize=(12, 4.6 * max(1, len(panels))), layout="constrained")
    axes = figure.subplots(max(1, len(panels)), 2, squeeze=False)
    for (latency, bandwidth), (title, lines) in zip(axes, panels.items(), strict=True):
        for (impl, transport, rails), points in lines.items():
            label = f"{impl} {transport}" + (f" ×{rails}" if rails > 1 else "")
            style = {
                "color": _COLORS[impl],
                "linestyle": _STYLES.get(transport, ":"),
                "marker": "o" if rails == 1 else "s",
                "markersize": 3,
            }
            sizes = [row["bytes"] for row in points]
            latency.plot(sizes, [row["median_us"] for row in points], label=label, **style)
            bandwidth.plot(sizes, [row["bus_gb_s"] for row in points], label=label, **style)
        for panel, unit in ((latency, "median µs"), (bandwidth, "bus bandwidth, GB/s")):
            panel.set(title=title, xlabel="bytes of the array", ylabel=unit)
            log_ticks(panel, sorted({row["bytes"] for points in lines.values() for row in points}), format_bytes)
        latency.set_yscale("log")
        bandwidth.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, dpi=130)


Line = tuple[str, str, int]


def panels_of(rows: Sequence[Row]) -> dict[str, dict[Line, list[Row]]]:
    """By title, the points of every line in the order of size. Every panel has the raw limits too."""
    panels: dict[str, dict[Line, list[Row]]] = {}
    limits: dict[Line, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        line = row["impl"], row["transport"], row["rails"]
        if row["impl"] == "raw":
            if row["op"] in ("send_recv", "exchange"):
                limits.setdefault(line, []).append(row)
        elif row["bytes"]:
            title = f"{row['op']} of {row['dtype']}, {row['ranks']} ranks"
            panels.setdefault(title, {}).setdefault(line, []).append(row)
    for lines in panels.values():
        lines.update(limits)
    return panels
