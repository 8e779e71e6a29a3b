"""Pictures of what `ferrule plan` predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ferrule.bench.plan_curves import Curve, over_context, over_hosts, over_latency
from ferrule.bench.ticks import log_ticks
from ferrule.errors import ConfigError, PlanError
from ferrule.plan import Question
from ferrule.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"single": "#555555", "tensor": "#0b6e4f", "pipeline": "#d1495b", "expert": "#2e5aac", "hybrid": "#b07d12"}
_MARKS = {"single": "o", "tensor": "o", "pipeline": "s", "expert": "^", "hybrid": "D"}
_LABELS = {
    "hosts": "hosts",
    "latency": "latency of every cable, one way",
    "context": "tokens in each sequence before the one that is timed",
}
_CURVES = {"hosts": over_hosts, "latency": over_latency, "context": over_context}


def plot_plans(question: Question, path: Path, over: Literal["hosts", "latency", "context"]) -> None:
    """Write a PNG, or what the suffix of ``path`` says. Needs matplotlib. Raises `PlanError` where there is nothing to
    plot, `ConfigError` where the file cannot be written."""
    from matplotlib.figure import Figure

    curves = _CURVES[over](question)
    if not curves:
        raise PlanError("nothing to draw: no plan fits")
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        _plot(axes, curve, over)
    _axes(axes, question, over, curves)
    try:
        figure.savefig(path, dpi=140)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the picture {path}: {error}") from None


def _plot(axes: Axes, curve: Curve, over: str) -> None:
    strategy = curve.name.partition(",")[0]
    strategy = strategy if strategy in _COLORS else "single"
    xs, ys = zip(*curve.points, strict=True)
    marks: dict[str, Any] = {"marker": _MARKS[strategy], "markersize": 6} if over == "hosts" else {}
    style: dict[str, Any] = {"linestyle": "--", "zorder": 3} if strategy == "single" else {}
    axes.plot(xs, ys, color=_COLORS[strategy], label=curve.name, linewidth=2, **marks, **style)
    if over == "hosts" and strategy == "single":
        axes.axhline(ys[0], color=_COLORS[strategy], linestyle="--", linewidth=1, zorder=1)


def _axes(axes: Axes, question: Question, over: str, curves: Sequence[Curve]) -> None:
    work, model = question.work, question.model
    whose = f"of {work.concurrency} sequences together" if work.concurrency > 1 else "of one sequence"
    highest = max(y for curve in curves for _, y in curve.points)
    axes.set(xlabel=_LABELS[over], ylabel=f"tokens/s {whose}, predicted", ylim=(0, highest * 1.15))
    axes.set_title(f"{model.name}, {model.stored}, engine {question.runtime.name}", fontsize=11, loc="left")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if over == "hosts":
        for x, y in _best(curves):
            axes.annotate(f"{y:.1f}", (x, y), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)
        counts = sorted({x for curve in curves for x, _ in curve.points})
        if counts[-1] > 16:
            axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [f"{count:.0f}" for count in counts])
        axes.set_xlim(counts[0] * 0.8 if counts[-1] > 16 else counts[0] - 0.4, counts[-1] + 0.4)
    elif over == "latency":
        log_ticks(axes, (1e-6, 1e-5, 1e-4, 1e-3), format_seconds)
        now = sorted({pair.alpha for pair in question.cluster.pairs})
        axes.axvline(now[-1], color="#888888", linestyle=":", linewidth=1.5)
        axes.annotate(
            f" now: {now[-1] * 1e6:.3g} µs",
            (now[-1], 0.03),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color="#666666",
        )
    else:
        longest = max(x for curve in curves for x, _ in curve.points)
        ticks = (512.0 * 2**power for power in range(13))
        named = lambda tokens: f"{tokens / 1024:.0f}k" if tokens >= 1024 else f"{tokens:.0f}"  # noqa: E731
        log_ticks(axes, [tick for tick in ticks if tick <= max(512, longest * 1.05)], named)
    axes.legend(frameon=False, fontsize=9, loc="best")


def _best(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """The highest point of each number of hosts."""
    highest: dict[float, float] = {}
    for curve in curves:
        for x, y in curve.points:
            highest[x] = max(y, highest.get(x, 0.0))
    return sorted(highest.items())
