"""A picture of the rows: decoding and prompts by format, and tokens per second over streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.bench.engine.rows import EngineRow
from ferrule.bench.ticks import log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"ferrule": "#0b6e4f", "llama.cpp": "#b07d12", "vllm": "#2e5aac", "transformers": "#d1495b"}
_STYLES = {"bfloat16": "-", "int8": "--", "int4": ":"}


def plot(rows: Sequence[EngineRow], path: Path) -> None:
    """Write a PNG, or what the suffix of ``path`` says. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.8), layout="constrained")
    decode, prefill, serve = figure.subplots(1, 3)
    _bars(decode, [each for each in rows if each.phase == "decode"], "decode, one sequence")
    _bars(prefill, [each for each in rows if each.phase == "prefill"], "prompt of one sequence")
    _lines(serve, [each for each in rows if each.phase == "serve"])
    figure.savefig(path, dpi=130)


def _label(each: EngineRow) -> str:
    cores = f"{each.ranks} rank{'s' if each.ranks > 1 else ''}"
    return f"{each.impl} {cores}" if each.threads == 1 else f"{each.impl} {cores} × {each.threads}"


def _bars(axes: Axes, rows: Sequence[EngineRow], title: str) -> None:
    best: dict[tuple[str, str], EngineRow] = {}
    for each in rows:  # a prompt is also timed through HTTP
        best.setdefault((_label(each), each.format), each)
    shown = list(best.values())[::-1]
    places = range(len(shown))
    axes.barh(places, [each.tokens_s_median for each in shown], color=[_COLORS[each.impl] for each in shown])
    for place, each in zip(places, shown, strict=True):
        axes.annotate(f" {each.tokens_s_median:.4g}", (each.tokens_s_median, place), va="center", fontsize=8)
    axes.set_yticks(places, [f"{_label(each)}, {each.format}" for each in shown], fontsize=8)
    axes.set(title=title, xlabel="tokens/s, median")
    axes.margins(x=0.15)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _lines(axes: Axes, rows: Sequence[EngineRow]) -> None:
    lines: dict[tuple[str, str], list[EngineRow]] = {}
    for each in rows:
        lines.setdefault((each.impl, each.format), []).append(each)
    for (impl, form), points in lines.items():
        xs, ys = [each.concurrency for each in points], [each.tokens_s_median for each in points]
        label = f"{_label(points[0])}, {form}"
        axes.plot(xs, ys, color=_COLORS[impl], linestyle=_STYLES[form], marker="o", markersize=4, label=label)
    if lines:
        log_ticks(axes, sorted({each.concurrency for each in rows}), str)
        axes.legend(fontsize=8, frameon=False)
    axes.set(title="served through HTTP", xlabel="streams at once", ylabel="tokens/s of all streams")
