"""A picture of `ferrule.bench.latency`: tokens per second by latency, and the arithmetic beside the measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.bench.latency import SPLITS, LatencyBench, predict
from ferrule.bench.ticks import log_ticks
from ferrule.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"tensor": "#0b6e4f", "pipeline": "#d1495b"}
_LEGEND = {"tensor": "tensor parallel, 2 hosts", "pipeline": "pipeline, 2 hosts"}


def plot(bench: LatencyBench, path: Path) -> None:
    """Write a PNG (or what the suffix of ``path`` says). Points are measured, lines are predicted. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    speed, parts = figure.subplots(1, 2)
    delays = [row.delay for row in bench.of("tensor") if row.delay]
    low, high = min(delays) / 1.5, max(delays) * 1.5
    line = [low * (high / low) ** (step / 200) for step in range(201)]
    for split in SPLITS:
        base, *rows = bench.of(split)
        predicted = [1e3 / predict(base.median_ms, base.messages, delay) for delay in line]
        speed.plot(line, predicted, color=_COLORS[split], linewidth=1.2)
        speed.plot(
            [row.delay for row in rows],
            [row.tokens_per_s for row in rows],
            color=_COLORS[split],
            marker="o",
            linestyle="none",
            label=_LEGEND[split],
        )
    speed.axhline(1e3 / bench.alone_ms, color="#888888", linestyle=":", label="one host")
    crossover = bench.crossover
    if crossover is not None and low < crossover < high:
        speed.axvline(crossover, color="#888888", linewidth=0.8)
        speed.annotate(
            f"equal at {format_seconds(crossover)}",
            (crossover, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    speed.set(
        title=f"{bench.model}: points measured, lines predicted",
        xlabel="latency of the cable, one way",
        ylabel="tokens/s, one stream",
    )
    speed.set_ylim(bottom=0)
    log_ticks(speed, delays, format_seconds)
    speed.legend(fontsize=8, frameon=False)
    _bars(parts, bench, delays)
    figure.savefig(path, dpi=130)


def _bars(axes: Axes, bench: LatencyBench, delays: list[float]) -> None:
    """Two bars for each delay: compute, and messages times latency above it; a dot for what was measured."""
    width = 0.38
    for side, split in enumerate(SPLITS):
        base, *rows = bench.of(split)
        at = [index + (side - 0.5) * (width + 0.02) for index in range(len(rows))]
        waiting = [row.predicted_ms - base.median_ms for row in rows]
        axes.bar(at, [base.median_ms] * len(rows), width, color=_COLORS[split], alpha=0.35)
        axes.bar(
            at,
            waiting,
            width,
            bottom=base.median_ms,
            color=_COLORS[split],
            alpha=0.8,
            label=f"{split}: + {base.messages} messages × latency",
        )
        label = "measured" if side else None
        axes.plot(at, [row.median_ms for row in rows], "k_", markersize=13, markeredgewidth=1.8, label=label)
    axes.set_xticks(range(len(delays)), [format_seconds(delay) for delay in delays])
    axes.set(title="Where a token's time goes", xlabel="latency of the cable, one way", ylabel="ms per token")
    axes.set_ylim(top=1.25 * max(row.median_ms for row in bench.rows))
    axes.legend(fontsize=8, frameon=False, loc="upper left")
