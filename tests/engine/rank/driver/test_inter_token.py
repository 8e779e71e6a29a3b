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
from ferrule.engine.rank.driver.pace import RIDGE, Line, Pace
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.driver.spans import load_of
from ferrule.engine.types import SamplingParams
from ferrule.errors import ConfigError

ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


@dataclass
class Machine:
    """Roofline: a step takes ``weights`` seconds, or ``token`` for each of its tokens where that is longer; and
    ``context`` for each token that one of them attends to, and ``dear`` for each of a prompt's beside streams. Times
    differ by up to ``noise``."""

    weights: float = 0.01
    token: float = 0.001
    context: float = 0.0
    dear: float = 0.0
    noise: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def seconds(self, batch: Batch) -> float:
        attended = sum(span.tokens * (span.seen + span.tokens / 2) for span in batch.spans)
        exact = max(self.weights, self.token * len(batch.tokens)) + self.context * attended
        exact += self.dear * sum(span.tokens for span in batch.spans if span.sequence >= 100)
        return exact * (1 + self.noise * self.chance.random())


@dataclass
class Load:
    """Streams that answer without end, and prompts that come beside; ``gaps``: seconds of the steps of streams."""

    scheduler: Scheduler
    machine: Machine
    gaps: list[float] = field(default_factory=list)
    first: dict[int, float] = field(default_factory=dict)
    now: float = 0.0
    computed: int = 0
    """Tokens of prompts."""

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
        load = load_of(batch, self.scheduler.by_identity)
        self.computed += load[1]
        self.scheduler.pace.took(seconds, *load)
        for sequence, _, _ in self.scheduler.complete(batch, [1] * sum(span.sample for span in batch.spans)):
            if sequence.generated == 1:
                self.first[sequence.identity] = self.now

    def work(self, length: int) -> float:
        """Seconds that tokens of a prompt take besides the weights."""
        return self.machine.token * length + self.machine.context * length * length / 2

    def until_begun(self, *numbers: int) -> int:
        steps = 0
        while not set(numbers) <= set(self.first):
            self.step()
            steps += 1
            assert steps < 50_000, "prompts come to an end"
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
    begun = load.now
    load.until_begun(100, 101)
    one = (1 + machine.noise) * (machine.context * 8192 + max(machine.weights, machine.token * (streams + 1)))
    assert p99(load.gaps) <= 1.02 * max(2 * alone, one), "but for the few steps that find the ridge"
    assert load.now - begun <= 21 * (load.work(8192) + load.work(2048)) + 0.1 * (load.now - begun)


def test_far_into_a_long_prompt_pieces_are_shorter() -> None:
    """A token takes 0.5 ms, and behind 4,000 others 4.5 ms, while 8 answers take 10 ms."""
    load = Load.of(Machine(0.01, 0.0005, 1e-6), "2x", 8)
    load.scheduler.add(100, [2] * 4096, SamplingParams(max_tokens=1))
    pieces: list[int] = []
    while 100 not in load.first:
        before = load.computed
        load.step()
        pieces.append(load.computed - before)
    beside, load.gaps = load.gaps[-100:], []
    for _ in range(20):
        load.step()
    assert p99(beside) <= 2 * p99(load.gaps)
    early, late = sorted(pieces[10:40])[15], sorted(pieces[-100:])[50]
    assert 1 <= late < early / 2


def test_the_price_of_a_token_knows_how_many_are_before_it() -> None:
    """A prompt of which much is in the cache already begins with a short piece, others with long ones."""
    pace = Pace(InterTokenLimit(2.0), 0.01)
    for turn in range(400):
        seen = 40 * (turn % 200)
        pace.took(0.01, 8, 0)
        pace.took(0.01 + 10 * (0.0002 + 1e-7 * (seen + 5)), 8, 10, 10 * (seen + 5))
    allowance = pace.allow(8, 1)
    assert allowance is not None
    assert pace.price(1, 0) == pytest.approx(0.0002, rel=0.2)
    assert pace.price(1, 8000) == pytest.approx(0.001, rel=0.1)
    assert allowance.of(8000) == pytest.approx(7, abs=1)
    assert allowance.of(0) == 12, "a quarter more than was tried"


@pytest.mark.parametrize(("limit", "share"), [("2x", 0.35), ("10ms", 0.05)])
def test_a_prompt_each_of_whose_tokens_takes_longer_than_the_limit_comes_to_its_end(limit: str, share: float) -> None:
    """By steps without it: it has at least half of what the limit leaves, or of a tenth of the answers' time."""
    load = Load.of(Machine(0.01, dear=0.03), limit, 8)
    load.scheduler.add(100, [2] * 100, ENDLESS)
    begun = load.now
    load.until_begun(100)
    work = 0.03 * 100
    assert work >= share * (load.now - begun - work)
    later = load.gaps[50:]
    assert max(later) <= 0.0401, "a token at once"
    assert sum(later) / len(later) <= 0.02
    assert len([gap for gap in later if gap < 0.011]) > len(later) / 2, "most steps go without"


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
    before = pace.allow(8, 1)
    pace.took(5.0, 8, 14)
    pace.took(5.0, 8, 0)
    after = pace.allow(8, 1)
    assert before is not None
    assert after is not None
    assert 0.5 * before.of(0) <= after.of(0) <= 1.5 * before.of(0)


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
    before = load.computed
    for number in range(101, 2000):
        if 100 in load.first:
            break
        if len(load.scheduler.by_identity) < 4:
            load.scheduler.add(number, [2] * RIDGE, SamplingParams(max_tokens=1))
        load.step()
    assert 100 in load.first
    assert 1000 <= load.computed - before <= 2 * 1000 + 200


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
