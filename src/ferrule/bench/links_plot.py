"""A picture of measured links: latency and bandwidth over size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ferrule.bench.ticks import log_ticks
from ferrule.links import MeasuredPair
from ferrule.units import format_bytes

_COLORS = ("#0b6e4f", "#d1495b", "#2e5aac", "#b07d12", "#6a4c93", "#1b9aaa", "#888888", "#e07a5f")


def plot(pairs: Sequence[MeasuredPair], path: Path) -> None:
    """Write a PNG, or what the suffix of ``path`` says. Needs matplotlib.

    Left: the time of a message one way, median, with a band from the least to p99. Right: what such messages carry one
    after the other, and as a dashed line what streams carry.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    latency, bandwidth = figure.subplots(1, 2)
    links = [link for pair in pairs for link in pair.links if link.latency]
    sizes = sorted({one.size for link in links for one in link.latency})
    for number, link in enumerate(links):
        color = _COLORS[number % len(_COLORS)]
        style = {"color": color, "marker": "o", "markersize": 4}
        at = [one.size for one in link.latency]
        latency.plot(at, [one.median * 1e6 for one in link.latency], label=link.name, **style)
        low, high = ([getattr(one, name) * 1e6 for one in link.latency] for name in ("minimum", "p99"))
        latency.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
        bandwidth.plot(at, [one.size * 8 / one.median / 1e9 for one in link.latency], label=link.name, **style)
        if link.bandwidth:
            best = max(link.forth, link.back) / 1e9
            bandwidth.axhline(best, color=color, linestyle="--", linewidth=1, label=f"streams, {best:.3g} Gb/s")
    latency.set(title="latency", ylabel="µs one way (median; band: min to p99)", yscale="log")
    bandwidth.set(title="bandwidth", ylabel="Gb/s of goodput, one message at a time", ylim=(0, None))
    for panel in (latency, bandwidth):
        panel.set_xlabel("size of a message")
        log_ticks(panel, sizes, format_bytes)
    bandwidth.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, dpi=130)
