"""An axis of a picture that is logarithmic and has ticks at given places only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_N = TypeVar("_N", int, float)


def log_ticks(axes: Axes, at: Iterable[_N], named: Callable[[_N], str]) -> None:
    """Of the x axis; needs matplotlib."""
    places = list(at)
    axes.set_xscale("log")
    axes.set_xticks(places, [named(place) for place in places])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
