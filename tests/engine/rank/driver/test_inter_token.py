"""The time between tokens while prompts are computed, on a clock of pretended machines."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.engine.inter_token import InterTokenLimit, parse_inter_token_limit
from ferrule.engine.options import EngineOptions
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.cache.held import HeldBlocks
from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex, root_key
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.pace import FLOOR, Line, Pace
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.driver.spans import load_of
from ferrule.engine.types import SamplingParams
from ferrule.errors import ConfigError

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


@dataclass
class Machine:
    """Roofline: a step takes ``weights`` seconds, or ``token`` for each of its tokens where that is longer; and
    ``context`` for each token that one of them attends to. Times differ by up to ``noise``."""

    weights: float = 0.01
    token: float = 0.001
    context: float = 0.0
    noise: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def seconds(self, batch: Batch) -> float:
        attended = sum(span.tokens * (span.seen + span.tokens / 2) for span in batch.spans)
        exact = max(self.weights, self.token * len(batch.tokens)) + self.context * attended
        return exact * (1 + self.noise * self.chance.random())


@dataclass
class Load:
    """Streams that answer without end, and prompts that come beside; ``gaps``: seconds of the steps of streams."""

    scheduler: Scheduler
    machine: Machine
    gaps: list[float] = field(default_factory=list)
    first: dict[int, float] = field(default_factory=dict)
    now: float = 0.0

    @classmethod
    def of(cls, machine: Machine, limit: str, streams: int, ridge: int = 0) -> Load:
        pace = Pace(parse_inter_token_limit(limit), machine.seconds(Batch(tokens=(0,))), ridge)
        load = cls(Scheduler(Limits(512, 1 << 20, 64, 1 << 17), frozenset(), pace=pace), machine)
        for number in range(streams):
            load.scheduler.add(number, [1] * 20, ENDLESS)
        for _ in range(300):
            load.step()
        load.gaps.clear()
        return load

    def step(self) -> None:
        batch = self.scheduler.next_batch()
        assert batch is not None
        seconds = self.machine.seconds(batch)
        self.now += seconds
        self.gaps.append(seconds)
        self.scheduler.pace.took(seconds, *load_of(batch, self.scheduler.by_identity))
        for sequence, _, _ in self.scheduler.complete(batch, [1] * sum(span.sample for span in batch.spans)):
            if sequence.generated == 1:
                self.first[sequence.identity] = self.now

    def until_begun(self, *numbers: int) -> int:
        steps = 0
        while not set(numbers) <= set(self.first):
            self.step()
            steps += 1
            assert steps < 5000, "prompts come to an end"
        return steps


def p99(gaps: list[float]) -> float:
    return sorted(gaps)[int(0.99 * (len(gaps) - 1))]


@settings(deadline=None, max_examples=10)
@given(
    st.builds(
        Machine,
        weights=st.floats(1e-3, 0.1),
        token=st.floats(3e-5, 3e-3),
        context=st.floats(0, 1e-8),
        noise=st.floats(0, 0.1),
    ),
    st.sampled_from((2, 8, 16)),
    st.booleans(),
)
def test_long_prompts_beside_streams_at_most_double_the_time_between_tokens(
    machine: Machine, streams: int, measured: bool
) -> None:
    ridge = min(256, round(machine.weights / machine.token)) if measured else 0
    load = Load.of(machine, "auto", streams, ridge)
    for _ in range(100):
        load.step()
    alone, load.gaps = p99(load.gaps), []
    for number, length in ((100, 8192), (101, 2048)):
        load.scheduler.add(number, [2] * length, SamplingParams(max_tokens=1))
    steps = load.until_begun(100, 101)
    floor = max(machine.weights, machine.token * (streams + FLOOR)) + machine.context * FLOOR * 8192
    assert p99(load.gaps) <= max(2 * alone, 1.01 * (1 + machine.noise) * floor)
    assert steps <= (8192 + 2048) / FLOOR * 33 / 32 + 2, "each step has a piece, but one of 32"


def test_the_room_that_the_limit_leaves_is_used() -> None:
    """Of 10 ms and 0.5 ms for each token beyond the 20th 14 can be had beside 8 answers, and a piece is as long."""
    load = Load.of(Machine(0.01, 0.0005), "2x", 8)
    load.scheduler.add(100, [2] * 4000, ENDLESS)
    for _ in range(100):
        load.step()
    used = sorted(load.gaps[20:])[len(load.gaps[20:]) // 2]
    assert 0.015 <= used <= 0.019
    fast = Load.of(Machine(0.01, 0.0005), "off", 8)
    fast.scheduler.add(100, [2] * 4000, ENDLESS)
    fast.step()
    assert max(fast.gaps) == pytest.approx(0.256)
    limited = Load.of(Machine(0.01, 0.0005), "40ms", 8)
    limited.scheduler.add(100, [2] * 8000, ENDLESS)
    for _ in range(100):
        limited.step()
    assert 0.03 <= p99(limited.gaps) <= 0.04


def test_a_single_slow_step_changes_little() -> None:
    pace = Pace(InterTokenLimit(2.0), 0.01)
    for _ in range(50):
        pace.took(0.01, 8, 0)
    for _ in range(20):
        pace.took(0.017, 8, 14)
    before = pace.beside(8, 1)
    pace.took(5.0, 8, 14)
    pace.took(5.0, 8, 0)
    after = pace.beside(8, 1)
    assert before is not None
    assert after is not None
    assert 0.5 * before <= after <= 1.5 * before


def test_more_prompts_than_answers_may_take_more_of_a_step() -> None:
    limit = parse_inter_token_limit("auto")
    assert [limit.step_seconds(0.01, 8, prompts) for prompts in (1, 8, 16, 60)] == pytest.approx(
        [0.02, 0.02, 0.03, 0.04]
    )
    assert parse_inter_token_limit("3x").step_seconds(0.01, 1, 60) == pytest.approx(0.03)
    assert parse_inter_token_limit("off").step_seconds(0.01, 1, 60) is None


def test_steps_of_other_numbers_of_answers_are_told_by_a_line() -> None:
    line = Line(1.0)
    assert line.at(5) == 1.0
    for _ in range(20):
        for answers in (1, 4, 8):
            line.measured(answers, 2 + 0.5 * answers)
    assert line.at(16) == pytest.approx(10, rel=0.1)


def test_a_short_prompt_does_not_wait_behind_long_ones() -> None:
    load = Load.of(Machine(0.01, 0.0005), "auto", 4)
    for number in range(100, 104):
        load.scheduler.add(number, [2] * 8192, ENDLESS)
    for _ in range(10):
        load.step()
    load.scheduler.add(200, [2] * 30, ENDLESS)
    assert load.until_begun(200) <= 6


def test_a_long_prompt_is_overtaken_by_no_more_tokens_than_it_has() -> None:
    """While short ones come without end, all of which are shorter than what is left of it."""
    load = Load.of(Machine(0.001, 0.001), "auto", 1)
    load.scheduler.add(100, [2] * 1000, ENDLESS)
    computed = 0
    for number in range(101, 2000):
        if 100 in load.first:
            break
        load.scheduler.add(number, [2] * FLOOR, SamplingParams(max_tokens=1))
        load.step()
        computed += FLOOR
    assert 1000 <= computed <= 2 * 1000 + 200


def test_blocks_are_read_from_disk_in_as_many_steps_as_answers_wait_for() -> None:
    prompt = list(range(8 * BLOCK + 1))
    prefixes = PrefixIndex(disk=100, stored=HeldBlocks(root_key("", long=False)).keys_of(prompt, 8))
    prefixes.costs.read = 0.002
    pace = Pace(InterTokenLimit(2.0), 0.01)
    scheduler = Scheduler(Limits(512, 1 << 20, 8, 1 << 17), frozenset(), prefixes, pace)
    reads: list[int] = []

    def step() -> Batch:
        if scheduler.seeks() and (found := scheduler.read_batch()) is not None:
            reads.append(len(found[1].read))
            scheduler.have_read(*found, reads[-1])
        batch = scheduler.next_batch()
        assert batch is not None
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))
        return batch

    scheduler.add(0, [1] * 20, ENDLESS)
    step()
    scheduler.add(1, prompt, ENDLESS)
    spans = [[(span.sequence, span.seen) for span in step().spans] for _ in range(4)]
    assert reads == [3, 3, 2]
    assert spans[:3] == [[(0, 20)], [(0, 21)], [(0, 22), (1, 8 * BLOCK)]]


@pytest.mark.parametrize("text", ["soon", "1x", "0.5x", "0", "0ms", "-3"])
def test_limits_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--inter-token-limit"):
        EngineOptions("demo", inter_token_limit=text)
