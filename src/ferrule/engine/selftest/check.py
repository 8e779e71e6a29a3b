"""The self-test as the ranks run it: who has the reference, the split model's answers, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ferrule.engine.options import LOAD_TIMEOUT, RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.runner import Runner
from ferrule.engine.selftest.compare import Rows, tolerance, worst
from ferrule.engine.selftest.fingerprint import Case, Fingerprint, compute, recall
from ferrule.engine.selftest.prompts import (
    Part,
    long_parts,
    long_rows,
    long_tokens,
    prefixes,
    short_parts,
    short_rows,
    token_ids,
)
from ferrule.engine.selftest.reference import sampled
from ferrule.engine.shards.messages import tell_all
from ferrule.engine.shards.obtain import Obtained
from ferrule.engine.types import Progress
from ferrule.errors import EngineError
from ferrule.fabric import Group
from ferrule.model import CACHE_BITS
from ferrule.plan import split_flags

OnProgress = Callable[[Progress], None]
SEQUENCE = 1 << 20
"""Numbers of the test's sequences begin here."""


@dataclass(frozen=True)
class Expected:
    """``fingerprint`` on the rank that has one, ``owner``; None elsewhere."""

    owner: int
    fingerprint: Fingerprint | None


def expected(
    world: Group, options: RankOptions, obtained: Obtained, vocabulary: int, on_progress: OnProgress
) -> Expected | None:
    """Find or compute the reference; all ranks call it before they load. None where there is nothing to compare: a
    model that is not split, or of which no host has all files."""
    if not options.self_test or world.size == 1 or not options.identity:
        return None
    most = options.plan.shards[0].last_layer
    case = Case(options.identity, vocabulary, options.context, most, options.weights)
    kept = recall(case)
    owners = [rank for rank, has in enumerate(tell_all(world, kept is not None, LOAD_TIMEOUT)) if has]
    owner = next(iter([*owners, *obtained.sources]), None)
    if owner is None:
        return None
    if world.rank != owner:
        return Expected(owner, None)
    report = lambda done, total: on_progress(Progress(world.rank, "reference", done, total))  # noqa: E731
    return Expected(owner, kept or compute(obtained.directory, case, report))


def check(runner: Runner, expected: Expected, vocabulary: int, room: int, on_progress: OnProgress) -> None:
    """Compare what the ranks compute together with the reference; all ranks call it. ``room``: tokens of cache.

    Raises `EngineError` on every rank where it is farther off than rounding explains.
    """
    world, options = runner.world, runner.options
    on_progress(Progress(world.rank, "self-test"))
    reference = _share(world, expected)
    lengths = prefixes(options.context)
    found = _short(runner, lengths, vocabulary)
    wrong = None
    if found is not None and world.rank == runner.plan.driver:
        wrong = _verdict(runner, found, reference.short, short_parts(lengths))
    tokens = long_tokens(options.context)
    if tokens and tokens <= room and runner.shard.stage == 0:
        places = long_rows(tokens)
        hidden = _long(runner, token_ids(tokens, vocabulary), places, reference.depth)
        if world.rank == 0:
            wrong = wrong or _verdict(runner, hidden, reference.long, long_parts(places))
    told = [each for each in tell_all(world, wrong or "", LOAD_TIMEOUT) if each]
    if told:
        raise EngineError(told[0])


def _share(world: Group, expected: Expected) -> Fingerprint:
    mine = b"" if expected.fingerprint is None else expected.fingerprint.to_bytes()
    size = np.array([len(mine)], dtype=np.int64)
    world.broadcast(size, root=expected.owner, timeout=LOAD_TIMEOUT)
    data = np.frombuffer(mine, dtype=np.uint8).copy() if mine else np.empty(int(size[0]), dtype=np.uint8)
    world.broadcast(data, root=expected.owner)
    return Fingerprint.from_bytes(data.tobytes())


def _short(runner: Runner, lengths: list[int], vocabulary: int) -> Rows | None:
    """Logits of the prompts' ends, and of one more token each; several sequences at once, as in serving, all beginnings
    of that of the reference."""
    ids = token_ids(short_rows(lengths)[-1] + 1, vocabulary)
    numbers = [SEQUENCE + index for index in range(len(lengths))]
    prompts = Batch(
        tuple(Span(number, 0, length, True, len(ids)) for number, length in zip(numbers, lengths, strict=True)),
        tuple(token for length in lengths for token in ids[:length]),
    )
    more = Batch(
        tuple(Span(number, length, 1, True) for number, length in zip(numbers, lengths, strict=True)),
        tuple(ids[length] for length in lengths),
    )
    answers = [runner.run(prompts), runner.run(more)]
    runner.run(Batch(released=tuple(numbers)))
    rows = [sampled(runner.device.download(answer)) for answer in answers if answer is not None]
    return np.concatenate(rows) if rows else None


def _long(runner: Runner, ids: list[int], places: list[int], depth: int) -> Rows:
    """Hidden states after ``depth`` layers of the first stage, computed in steps as a long prompt is."""
    step, found = runner.options.batch_tokens, []
    for first in range(0, len(ids), step):
        piece = ids[first : first + step]
        batch = Batch((Span(SEQUENCE, first, len(piece), False, len(ids)),), tuple(piece))
        rows = [place - first for place in places if first <= place < first + len(piece)]
        found.append(sampled(runner.capture(batch, depth, rows)))
    runner.run(Batch(released=(SEQUENCE,)))
    return np.concatenate(found)


def _verdict(runner: Runner, found: Rows, reference: Rows, parts: list[Part]) -> str | None:
    """Description of what is wrong, or None."""
    plan = runner.plan
    kept = runner.options.kv_cache
    allowed = tolerance(runner.dtype, plan.layers, CACHE_BITS[kept])
    off, where = worst(found, reference, parts)
    if off <= allowed:
        return None
    computed = runner.dtype if kept == "auto" else f"{runner.dtype} with --kv-cache {kept}"
    return (
        f"self-test: with {split_flags(plan)} the answers {where} are {off:.3g} off those of the "
        f"model computed in one piece (in {computed} up to {allowed:.2g} is rounding), so it would answer wrongly. "
        "Try another split and, if that passes, report this one; if all fail, test the hosts' memory and cables "
        "(ferrule doctor) and the model's files. --no-self-test serves it all the same"
    )
