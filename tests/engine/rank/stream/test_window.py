"""Which layers stay in memory, and how many buffers the others are read into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine.rank.stream.window import (
    Layers,
    Pace,
    Window,
    cycle_seconds,
    fewest_read,
    least_room,
    plan_window,
    spread,
)

PACE = Pace(disk=1e9, memory=20e9, pause=1e-3)
SIZES = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=40)


def held(layers: Layers, window: Window) -> int:
    dense = layers.dense
    largest = max((dense[layer] for layer in window.read), default=0)
    experts = layers.experts if window.experts is None else window.experts
    return sum(dense) - sum(dense[layer] for layer in window.read) + window.slots * largest + experts * layers.expert


@given(SIZES, st.integers(0, 64), st.integers(1, 1 << 18), st.integers(1, 4), st.floats(0, 1.2))
def test_what_is_planned_has_room(dense: list[int], experts: int, expert: int, chosen: int, part: float) -> None:
    layers = Layers(tuple(dense), expert if experts else 0, experts, min(chosen, experts))
    room = round(part * (sum(dense) + experts * layers.expert))
    window = plan_window(layers, room, PACE)
    if window is None:
        assert room < least_room(layers)
        return
    assert held(layers, window) <= room
    assert window.read == tuple(sorted(set(window.read)))
    assert 0 < window.slots <= len(window.read) if window.read else window.slots == 0
    if window.read and experts:
        assert window.experts == min(experts, layers.chosen)


def test_as_little_is_read_as_can_be_and_at_equal_distances() -> None:
    dense = (100_000_000,) * 12
    pace = Pace(disk=1e9, memory=2e9, pause=1e-3)  # where it is worth to read ahead
    assert plan_window(Layers(dense), 1_000_000_000, pace) == Window(read=(3, 7, 11), slots=1), "others lie between"
    assert plan_window(Layers(dense), 400_000_000, pace) == Window(read=spread(10, 12), slots=2)
    assert plan_window(Layers(dense), 1_200_000_000, pace) == Window()
    assert plan_window(Layers(dense), 99_999_999, pace) is None
    assert fewest_read(dense, 1_000_000_000, 1) == spread(3, 12) == (3, 7, 11)
    assert spread(5, 5) == (0, 1, 2, 3, 4)


def test_experts_are_read_before_what_all_tokens_need() -> None:
    layers = Layers((100,) * 4, expert=10, experts=64, chosen=4)
    assert plan_window(layers, 1040, PACE) == Window()
    assert plan_window(layers, 800, PACE) == Window(experts=40)
    few = plan_window(layers, 300, PACE)
    assert few is not None
    assert few.experts == 4
    assert len(few.read) in (3, 4)


def test_the_disk_does_not_wait_where_it_is_slower_than_memory() -> None:
    """A cycle takes what reading takes, and no longer: the bar is 70 % of that."""
    dense = (50 << 20,) * 48
    window = plan_window(Layers(dense), round(sum(dense) / 1.5), PACE)
    assert window is not None
    seconds = cycle_seconds(dense, frozenset(window.read), window.slots, PACE)
    reading = sum(dense[layer] for layer in window.read) / PACE.disk
    assert reading <= seconds <= 1.06 * reading
    needed = sum(dense) - sum(dense) / 1.5
    assert needed / PACE.disk / seconds > 0.85, "the buffers take room of their own"


@pytest.mark.parametrize(("slots", "better"), [(1, False), (2, True)])
def test_one_buffer_is_not_enough_to_read_ahead(slots: int, better: bool) -> None:
    pace = Pace(disk=10e9, memory=10e9, pause=0.0)
    seconds = cycle_seconds((10**9,) * 8, frozenset(range(8)), slots, pace)
    assert (seconds == pytest.approx(0.8)) == better
    assert (seconds == pytest.approx(1.6)) != better
