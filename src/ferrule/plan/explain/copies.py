"""Whether whole copies of a model answer more than one split of it: sentences."""

from __future__ import annotations

from ferrule.plan.explain.verdict import WORTH_IT
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Question
from ferrule.plan.replicas import Replicated

_EXCHANGED = ("collective", "hop")


def copies_verdict(question: Question, best: Candidate, single: Candidate, found: Replicated | None) -> str:
    """One sentence about ``found`` beside the ``best`` plan of one copy; ``single``: the best one on one device. Empty
    where there is nothing to choose."""
    if len(question.cluster.devices) < 2 or question.work.concurrency < 2:
        return ""
    if found is None:
        lacks = -single.prediction.memory[0].margin
        name = single.plan.devices[0]
        return f"Whole copies do not fit: {name} alone lacks {lacks / 2**30:.1f} GiB." if lacks > 0 else ""
    count, times = len(found.copies), found.throughput / best.prediction.throughput
    copies = f"{count} whole copies (ferrule serve --replicas {count})"
    if times < 1 / WORTH_IT:
        why = "each reads all weights for its own sequences alone"
        return f"{copies} would do {times:.2f} times as much as the best plan of one: {why}."
    if times < WORTH_IT:
        return f"{copies} would do as much as the best plan of one."
    return f"{copies} do {times:.2f} times as much as the best plan of one: {_why(best)}."


def _why(best: Candidate) -> str:
    if len(best.plan.devices) == 1:
        return f"each does by itself what {best.plan.devices[0]} does"
    terms = best.prediction.step_terms
    waiting = sum(term.seconds for term in terms if term.kind in _EXCHANGED)
    part = waiting / max(sum(term.seconds for term in terms), 1e-30)
    if part < 0.01:
        return "no machine waits for another"
    return f"{part:.0%} of a step of the split are messages, and copies have none".replace("%", " %")
