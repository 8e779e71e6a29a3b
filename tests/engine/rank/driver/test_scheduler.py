"""The scheduler against a model of what it must do: every request gets exactly the tokens it would get alone."""

from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ferrule.engine.rank.batch import Batch, Kind
from ferrule.engine.rank.cache.prefix import PrefixIndex
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.pace import RIDGE, Pace
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.driver.speculation import Speculation
from ferrule.engine.rank.sequence import Sequence
from ferrule.engine.turn import Turn
from ferrule.engine.types import FinishReason, SamplingParams

END = 0
ADAPTERS = 3
"""By the remainder of its number a sequence has one of two adapters or none."""


BLOCK = 4
"""Tokens of a block, of which sequences here then have several."""


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("cache.prefix", "cache.held", "driver.scheduler", "driver.stored"):
            patch.setattr(f"ferrule.engine.rank.{module}.BLOCK", BLOCK)
        yield


def next_token(tokens: list[int]) -> int:
    """A pretended model: its next token depends on every token so far."""
    return (sum(token * (place + 7) for place, token in enumerate(tokens)) * 31 + len(tokens)) % 97


class Guessing(Speculation):
    """Guesses what the pretended model says, but for some places."""

    def drafts(self, sequence: Sequence, most: int, answers: int) -> tuple[int, ...]:
        found: list[int] = []
        if sequence.remaining != 1:
            return ()
        for place in range(min(most, self.most, self.limits.before_end(sequence))):
            count = len(sequence.tokens) + place
            token = next_token([*sequence.tokens, *found])
            if count % 5 == 0:
                token = (token + 1) % 97
            if token in self.ends or token in sequence.params.stop_token_ids:
                break
            found.append(token)
        return tuple(found)


class Caches:
    """Caches of ranks: replays batches and computes each sampled token from the cached tokens alone. ``short``:
    as of `Limits`, by which a cache is chosen when it starts."""

    def __init__(self, short: int | None = None, *, copies: bool = False) -> None:
        self.short, self.copies, self.long = short, copies, dict[int, bool]()
        self.held: dict[int, list[int]] = {}
        self.blocks: dict[int, tuple[list[int], int, bool]] = {}
        """By number: all tokens up to its end, its adapter, and whether it is of a long sequence."""
        self.shares: dict[int, set[int]] = {}
        """By sequence, the places of its blocks that are those above."""
        self.most = self.reused = 0

    def run(self, batch: Batch) -> tuple[list[int], list[int]]:
        """Tokens, and how many of each sequence."""
        for each in batch.kept:
            tokens = self.held[each.sequence][: (each.place + 1) * BLOCK]
            assert len(tokens) == (each.place + 1) * BLOCK
            made = (tokens, each.sequence % ADAPTERS, self.long[each.sequence])
            assert self.blocks.setdefault(each.block, made) == made, "a block is what sequences have in common"
            self.shares[each.sequence].add(each.place)
        for identity in batch.released:
            self.held.pop(identity, None)
            self.shares.pop(identity, None)
        for span in batch.spans:
            if span.blocks:
                *_, (tokens, adapter, long) = (self.blocks[block] for block in span.blocks)
                assert len(tokens) == span.seen == len(span.blocks) * BLOCK
                assert adapter == span.sequence % ADAPTERS
                assert long == self._is_long(span.known)
                self.held[span.sequence], self.long[span.sequence] = list(tokens), long
                self.shares[span.sequence] = set(range(len(span.blocks)))
                self.reused += span.seen
        for block in batch.dropped:
            del self.blocks[block]
        at, sampled, counts = 0, list[int](), list[int]()
        numbers = tuple(span.sequence % ADAPTERS for span in batch.spans)
        assert batch.adapters == (numbers if any(numbers) else ())
        for span in batch.spans:
            if span.seen == 0:
                self.held[span.sequence], self.shares[span.sequence] = [], set()
                self.long[span.sequence] = self._is_long(span.known)
            held = self.held[span.sequence]
            assert len(held) >= span.seen
            del held[span.seen :]  # of guesses that were wrong
            held += batch.tokens[at : at + span.tokens]
            at += span.tokens
            if span.sample:
                assert self.long[span.sequence] == self._is_long(len(held))
                places = range(len(held) - span.drafted, len(held) + 1)
                made = [next_token(held[:place]) for place in places]
                right = next((i for i, place in enumerate(places[:-1]) if held[place] != made[i]), span.drafted)
                sampled += made[: right + 1]
                counts.append(right + 1)
        own = sum(len(tokens) - BLOCK * len(self.shares[one]) * (not self.copies) for one, tokens in self.held.items())
        self.most = max(self.most, own + BLOCK * len(self.blocks))
        return sampled, counts

    def _is_long(self, tokens: int) -> bool:
        return self.short is not None and tokens > self.short


def drive(
    limits: Limits,
    requests: dict[int, tuple[list[int], SamplingParams]],
    cancel: set[int],
    made: dict[int, list[int]] | None = None,
    *,
    stepwise: bool = False,
    ahead: bool = False,
    forces: int = 0,
    prefixes: PrefixIndex | None = None,
    speculation: Speculation | None = None,
) -> dict[int, list]:
    """``forces``: after each third token so many are forced."""
    prefixes = prefixes or PrefixIndex()
    scheduler = Scheduler(limits, frozenset({END}), prefixes, speculation=speculation)
    caches = Caches(limits.short, copies=prefixes.copies)
    for identity, (prompt, params) in requests.items():
        adapter = identity % ADAPTERS
        known = (made or {}).get(identity, ())
        scheduler.add(identity, prompt, params, known, stepwise=stepwise, adapter=adapter, about=str(adapter))
    answers: dict[int, list] = {identity: [] for identity in requests}
    under_way: deque[tuple[Batch, tuple[list[int], list[int]]]] = deque()
    for step in range(5000):
        if step == 3:
            for identity in cancel:
                scheduler.cancel(identity)
        while len(under_way) < limits.batches and (batch := scheduler.next_batch()):
            assert len(batch.tokens) <= limits.batch_tokens
            assert len(batch.spans) <= limits.sequences
            under_way.append((batch, caches.run(batch)))
        if not under_way:
            break
        batch, sampled = under_way.popleft()
        following = scheduler.following(batch) if ahead and limits.batches == 1 else None
        if following is not None:  # with the tokens as the device has them
            under_way.append((following, caches.run(replace(following, tokens=tuple(sampled[0])))))
        last: dict[int, tuple[Sequence, int, FinishReason | None]] = {}
        for sequence, token, reason in scheduler.complete(batch, *sampled):
            answers[sequence.identity].append((token, reason))
            last[sequence.identity] = sequence, token, reason
        for sequence, token, reason in last.values():
            if reason is None and token % 3 == 0 and following is None:
                tokens = list(sequence.tokens)
                for _ in range(forces):
                    tokens.append(next_token(tokens))
                answers[sequence.identity] += scheduler.force(sequence, tokens[len(sequence.tokens) :])
        if following is not None:
            scheduler.begin(following)
    assert not scheduler.by_identity, "requests were left over"
    assert not scheduler.running
    assert not scheduler.waiting
    caches.run(scheduler.idle_batch())
    assert not caches.held, "caches were not released"
    assert caches.most <= limits.cache_tokens + limits.batches * limits.sequences  # a token of each may end late
    assert set(caches.blocks) == {block.number for block in prefixes.blocks.values()}
    assert prefixes.evict(len(caches.blocks)) == len(caches.blocks), "all can go, when nothing runs"
    if not prefixes.enabled:
        assert not caches.reused
    return answers


def alone(prompt: list[int], params: SamplingParams, context: int) -> list:
    tokens, answer = list(prompt), []
    while True:
        token = next_token(tokens)
        tokens.append(token)
        reason = None
        if token in params.stop_token_ids or (token == END and not params.ignore_eos):
            reason = "stop"
        elif len(answer) + 1 == params.max_tokens or len(tokens) >= context:
            reason = "length"
        answer.append((token, reason))
        if reason:
            return answer


BEGINNING = tuple(range(20))
TOKENS = st.lists(st.integers(0, 96), min_size=1, max_size=10)
REQUEST = st.tuples(
    st.builds(lambda shared, own: [*BEGINNING[:shared], *own], st.integers(0, 20), TOKENS),
    st.builds(
        SamplingParams,
        max_tokens=st.none() | st.integers(1, 30),
        ignore_eos=st.booleans(),
        stop_token_ids=st.lists(st.integers(0, 96), max_size=2).map(tuple),
        turn=st.builds(Turn, st.sampled_from(("", "one")), st.integers(-1, 1)),
    ),
)


@settings(deadline=None)
@given(
    st.lists(REQUEST, min_size=1, max_size=8),
    st.builds(
        Limits,
        batch_tokens=st.integers(1, 40),
        cache_tokens=st.integers(64, 200),
        sequences=st.integers(1, 6),
        context=st.just(64),
        batches=st.integers(1, 3),
        short=st.none() | st.integers(1, 63),
    ),
    st.sets(st.integers(0, 7)),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
    st.builds(PrefixIndex, enabled=st.booleans(), copies=st.booleans()),
    st.integers(0, 6),
)
def test_every_request_gets_what_it_would_get_alone(
    requests: list,
    limits: Limits,
    cancel: set[int],
    known: int,
    stepwise: bool,
    ahead: bool,
    forces: int,
    prefixes: PrefixIndex,
    guessed: int,
) -> None:
    numbered = dict(enumerate(requests))
    whole = {identity: alone(prompt, params, limits.context) for identity, (prompt, params) in numbered.items()}
    made = {identity: [token for token, _ in answer[:-1][:known]] for identity, answer in whole.items()}
    speculation = Guessing(guessed, {END}, limits) if guessed else None
    given = {"prefixes": prefixes, "speculation": speculation}
    answers = drive(limits, numbered, cancel, made, stepwise=stepwise, ahead=ahead, forces=forces, **given)
    for identity in numbered:
        expected = whole[identity][len(made[identity]) :]
        if identity in cancel:
            assert answers[identity] == expected[: len(answers[identity])]
        else:
            assert answers[identity] == expected


def test_a_long_prompt_does_not_hold_up_answers_in_progress() -> None:
    scheduler = Scheduler(Limits(batch_tokens=8, cache_tokens=1000, sequences=4, context=500), frozenset())
    scheduler.add(1, list(range(100)), SamplingParams())
    scheduler.add(2, [1, 2], SamplingParams())
    first = scheduler.next_batch()
    assert first is not None
    assert [(s.sequence, s.tokens) for s in first.spans] == [(2, 2), (1, 6)]
    scheduler.complete(first, [5])
    for _ in range(14):  # until the first prompt is done, beside the second one's answer
        batch = scheduler.next_batch()
        assert batch is not None
        scheduler.complete(batch, [5] * sum(s.sample for s in batch.spans))
    scheduler.add(3, list(range(100)), SamplingParams())
    batch = scheduler.next_batch()
    assert batch is not None
    assert {(s.sequence, s.tokens) for s in batch.spans} >= {(1, 1)}
    assert batch.spans[0].tokens == 1


def test_when_the_cache_is_full_the_youngest_gives_way_and_is_computed_again() -> None:
    limits = Limits(batch_tokens=64, cache_tokens=64, sequences=8, context=60)
    requests = {n: ([n + 1] * 15, SamplingParams(max_tokens=30, ignore_eos=True)) for n in range(4)}
    answers = drive(limits, requests, set())
    for identity, (prompt, params) in requests.items():
        assert answers[identity] == alone(prompt, params, limits.context)


def test_an_answer_that_goes_on_is_computed_in_the_steps_in_which_it_was_made() -> None:
    scheduler = Scheduler(Limits(batch_tokens=4, cache_tokens=1000, sequences=4, context=500), frozenset())
    scheduler.add(1, [1] * 6, SamplingParams(), [2, 3, 4, 5], stepwise=True, forced={2})
    steps = []
    for _ in range(7):
        batch = scheduler.next_batch()
        assert batch is not None
        steps += [(span.seen, span.tokens, span.sample) for span in batch.spans]
        for sequence, _, _ in scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans)):
            if len(sequence.tokens) == 12:
                assert scheduler.force(sequence, [6, 7]) == [(6, None), (7, None)]
    answer = [(6, 1, False), (7, 2, False), (9, 1, True), (10, 1, True), (11, 3, True)]
    assert steps == [(0, 4, False), (4, 2, False), *answer]


def test_forced_tokens_do_not_wait_behind_answers_as_prompts_do() -> None:
    scheduler = Scheduler(Limits(512, 10_000, 80, 4096), frozenset({END}))
    for number in range(40):
        scheduler.add(number, [5], SamplingParams(max_tokens=50))
    for _ in range(2):
        batch = scheduler.next_batch()
        assert batch is not None
        done = scheduler.complete(batch, [7] * 40)
    for sequence, _, _ in done:
        scheduler.force(sequence, [8, 9])
    assert scheduler.answers() == 40
    scheduler.add(40, [5] * 400, SamplingParams())
    batch = scheduler.next_batch()
    assert batch is not None
    assert [span.tokens for span in batch.spans] == [*[3] * 40, RIDGE]
    assert scheduler.following(batch) is None
    (sequence, *_) = (sequence for sequence, _, _ in scheduler.complete(batch, [7] * 40))
    assert scheduler.force(sequence, [8, END, 9]) == [(8, None), (END, "stop")], "it ends within them"
    assert sequence.identity not in scheduler.by_identity


def test_a_step_follows_before_its_tokens_are_known_where_nothing_else_can_come() -> None:
    scheduler = Scheduler(Limits(batch_tokens=8, cache_tokens=40, sequences=2, context=20), frozenset({END}))
    scheduler.add(1, [5] * 3, SamplingParams(max_tokens=3))
    scheduler.add(2, [5] * 4, SamplingParams())
    first = scheduler.next_batch()
    assert first is not None
    second = scheduler.following(first)
    assert second is not None
    assert [(span.sequence, span.seen, span.tokens, span.sample) for span in second.spans] == [
        (1, 3, 1, True),
        (2, 4, 1, True),
    ]
    assert [one.identity for one, _, _ in scheduler.complete(first, [7, END])] == [1, 2]
    scheduler.begin(second)
    assert scheduler.following(second) is None, "the second answer has ended by its token"
    assert [(one.identity, token) for one, token, _ in scheduler.complete(second, [8, 9])] == [(1, 8)]
    third = scheduler.next_batch()
    assert third is not None
    assert third.released == (2,)
    assert scheduler.following(third) is None, "the first answer ends by its length"
    scheduler.complete(third, [9])
    scheduler.add(3, [5], SamplingParams())
    one = scheduler.next_batch()
    assert one is not None
    assert scheduler.following(one) is not None
    scheduler.add(4, [5], SamplingParams())
    assert scheduler.following(one) is None, "a request waits"


def test_two_batches_share_the_sequences_so_that_two_stages_work() -> None:
    limits = Limits(batch_tokens=64, cache_tokens=1000, sequences=8, context=100, batches=2)
    scheduler = Scheduler(limits, frozenset())
    for identity in range(4):
        scheduler.add(identity, [1], SamplingParams())
    first, second = scheduler.next_batch(), scheduler.next_batch()
    assert first is not None
    assert second is not None
    assert [s.sequence for s in first.spans] == [0, 1]
    assert [s.sequence for s in second.spans] == [2, 3]
    assert scheduler.next_batch() is None


@pytest.mark.parametrize(("sequences", "stages"), [(4, 2), (5, 2), (6, 4), (7, 3), (9, 4), (2, 3)])
def test_every_stage_has_a_batch_and_all_have_as_many_sequences(sequences: int, stages: int) -> None:
    """Also after some have ended, all of one batch, and others have come, all at once."""
    scheduler = Scheduler(Limits(64, 10_000, 64, 1000, batches=stages), frozenset())
    for identity in range(3 * sequences):
        scheduler.add(identity, [1], SamplingParams())
    under_way: deque[Batch] = deque()

    def rounds(count: int) -> list[int]:
        for _ in range(count * stages):
            if under_way:
                batch = under_way.popleft()
                scheduler.complete(batch, [5] * len(batch.spans))
            while len(under_way) < stages and (new := scheduler.next_batch()):
                under_way.append(new)
        return [len(batch.spans) for batch in under_way]

    rounds(3)
    for identity in range(2 * sequences):
        scheduler.cancel(identity)
    sizes = rounds(6)
    for _ in range(2):
        assert sum(sizes) == sequences
        assert len(sizes) == min(sequences, stages)
        assert max(sizes) - min(sizes) <= 1
        scheduler.add(100 + sequences, [1], SamplingParams())
        scheduler.cancel(3 * sequences - 1)
        sizes = rounds(6)


def test_answers_do_not_wait_for_many_tokens_of_prompts() -> None:
    scheduler = Scheduler(Limits(512, 10_000, 8, 4096), frozenset({END}), pace=Pace(step_seconds=1.0, ridge=32))
    params = SamplingParams(max_tokens=50)
    scheduler.add(1, [5] * 600, params)
    first = scheduler.next_batch()
    assert first is not None
    assert [span.tokens for span in first.spans] == [512]  # no request waits
    scheduler.complete(first, [])
    rest = scheduler.next_batch()
    assert rest is not None
    assert [span.tokens for span in rest.spans] == [88]
    scheduler.complete(rest, [7])
    scheduler.add(2, [5] * 20, params)
    scheduler.add(3, [5] * 300, params)
    mixed = scheduler.next_batch()
    assert mixed is not None
    assert [(span.sequence, span.tokens) for span in mixed.spans] == [(1, 1), (2, 20), (3, 12)]
    scheduler.complete(mixed, [7, 7])
    following = scheduler.next_batch()
    assert following is not None
    assert [(span.sequence, span.tokens) for span in following.spans] == [(1, 1), (2, 1), (3, 22)]


def test_of_a_prompt_that_is_scored_pieces_are_as_long_as_logits_have_room() -> None:
    limits = Limits(batch_tokens=16, cache_tokens=1000, sequences=4, context=500, scored=6)
    scheduler = Scheduler(limits, frozenset())
    scored = SamplingParams(prompt_logprobs=0)
    scheduler.add(1, range(10), scored)
    scheduler.add(2, range(12), scored, scored=2)
    scheduler.add(3, range(7), scored, [8, 9], scored=6)  # whose prompt is known whole
    steps = []
    while len(steps) < 6:
        batch = scheduler.next_batch()
        assert batch is not None
        steps += [(span.sequence, span.seen, span.tokens, span.scored, span.sample) for span in batch.spans]
        assert sum(span.tokens for span in batch.spans if span.scored) <= limits.scored
        assert len(batch.logit_rows()) == sum(span.rows for span in batch.spans)
        for span in batch.spans:
            scheduler.by_identity[span.sequence].scored = span.seen + span.tokens
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))
    assert steps[:6] == [
        (3, 0, 9, False, True),
        (1, 0, 6, True, False),
        (2, 0, 1, False, False),  # what is known needs no logits
        (3, 9, 1, False, True),
        (1, 6, 4, True, True),
        (2, 1, 2, True, False),
    ]


def test_what_is_embedded_ends_with_its_prompt_in_turns_with_answers() -> None:
    limits = Limits(batch_tokens=80, cache_tokens=1000, sequences=4, context=500)
    scheduler = Scheduler(limits, frozenset())
    scheduler.add(1, [1, 2], SamplingParams(max_tokens=99, ignore_eos=True))
    scheduler.add(2, range(50), SamplingParams(), embedded=True)
    scheduler.add(3, range(3), SamplingParams(), embedded=True)
    steps = []
    for _ in range(16):
        batch = scheduler.next_batch()
        assert batch is not None
        steps.append((batch.kind, [(span.sequence, span.tokens, span.sample) for span in batch.spans]))
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))
    assert [kind for kind, _ in steps[:10]] == [Kind.EMBED, Kind.RUN] * 5
    assert [kind for kind, _ in steps[10:]] == [Kind.EMBED, *[Kind.RUN] * 5]
    assert steps[0][1] == [(3, 3, False), (2, RIDGE - 3, False)]  # answers wait for no more than for prompts
    assert steps[2][1] == [(2, RIDGE, False)]
    assert steps[1][1] == [(1, 2, True)]
    assert steps[3][1] == steps[14][1] == [(1, 1, True)]
    assert set(scheduler.by_identity) == {1}
    scheduler.cancel(1)
    assert set(scheduler.idle_batch().released) == {1}


def test_what_is_embedded_may_be_cancelled_under_way() -> None:
    scheduler = Scheduler(Limits(batch_tokens=8, cache_tokens=100, sequences=4, context=50), frozenset())
    scheduler.add(1, range(20), SamplingParams(), embedded=True)
    batch = scheduler.next_batch()
    assert batch is not None
    scheduler.cancel(1)
    assert scheduler.complete(batch, []) == []
    assert not scheduler.by_identity
    assert scheduler.idle_batch().released == (1,)


def test_texts_that_are_computed_whole_share_steps_where_they_fit() -> None:
    scheduler = Scheduler(Limits(10, 1000, 8, 100, whole=True), frozenset())
    for number, length in enumerate((4, 6, 25, 3, 8)):
        scheduler.add(number, [5] * length, SamplingParams(), embedded=True)
    steps = []
    while (batch := scheduler.next_batch()) is not None:
        assert batch.kind is Kind.EMBED
        assert all(span.seen == 0 for span in batch.spans)
        steps.append([span.tokens for span in batch.spans])
        assert scheduler.complete(batch, []) == []
    assert steps == [[3, 4], [6], [8], [25]]
    assert not scheduler.by_identity
