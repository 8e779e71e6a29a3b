"""Bottleneck of a plan: what takes most of its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ferrule.plan.cluster.changes import with_rails
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate, Prediction, Term, TermKind
from ferrule.plan.question import Question

BottleneckKind = Literal["weights", "cache", "compute", "launch", "latency", "bandwidth", "hop", "disk", "step"]
Timed = Literal["token", "prompt", "step"]
_TIMES: dict[Timed, str] = {
    "token": "token time",
    "prompt": "the prompt's time",
    "step": "the time of a step of all sequences",
}
NAMED = 4
"""So many places are named; of more the first two."""
_TEXTS: dict[BottleneckKind, str] = {
    "weights": "reading weights from memory on {}",
    "cache": "reading keys and values from memory on {}",
    "compute": "arithmetic on {}",
    "launch": "starting operations on {}",
    "latency": "all-reduce latency on {}",
    "bandwidth": "all-reduce bandwidth on {}",
    "hop": "messages between stages over {}",
    "disk": "reading weights from disk on {}",
    "step": "the engine's scheduler and sampling on {}",
}


@dataclass(frozen=True)
class Bottleneck:
    """Bottleneck of a token, a prompt, or a step of all sequences: what takes most of it. ``part``: of the time."""

    kind: BottleneckKind
    where: str
    seconds: float
    part: float
    of: Timed

    @property
    def text(self) -> str:
        return f"{_TEXTS[self.kind].format(self.where)}: {self.part:.0%} of {_TIMES[self.of]}".replace("%", " %")


def bottleneck(question: Question, candidate: Candidate) -> Bottleneck:
    """Of a prompt if the time to the first token is asked for, or is most of an answer's; of a step if what many
    sequences get or use together is; else of a token of a single stream."""
    of = _timed(question, candidate.prediction)
    terms = _terms(candidate.prediction, of)
    by_kind: dict[TermKind, float] = {}
    for term in terms:
        by_kind[term.kind] = by_kind.get(term.kind, 0.0) + term.seconds
    kind = max(by_kind, key=lambda each: (by_kind[each], each))
    where = _places(term for term in terms if term.kind == kind)
    found: BottleneckKind = _collective_kind(question, candidate.plan, of) if kind == "collective" else kind
    total = sum(by_kind.values())
    return Bottleneck(found, where, by_kind[kind], by_kind[kind] / total if total else 0.0, of)


def _places(terms: Iterable[Term]) -> str:
    """Places where most of it happens, all if these are few."""
    ordered = sorted(terms, key=lambda term: -term.seconds)
    names = list(dict.fromkeys(name for term in ordered for name in term.where.split(", ")))
    return ", ".join(names) if len(names) <= NAMED else f"{', '.join(names[:2])} and {len(names) - 2} others"


def _timed(question: Question, prediction: Prediction) -> Timed:
    if question.objective == "ttft":
        return "prompt"
    if question.objective == "answer":
        return "prompt" if 2 * prediction.ttft_seconds > prediction.answer_seconds else "token"
    together = question.objective in ("throughput", "energy") and question.work.concurrency > 1
    return "step" if together else "token"


def _terms(prediction: Prediction, of: Timed) -> tuple[Term, ...]:
    return {"token": prediction.terms, "prompt": prediction.prompt_terms, "step": prediction.step_terms}[of]


def _collective_kind(question: Question, plan: Plan, of: Timed) -> Literal["latency", "bandwidth"]:
    """Bottleneck of collectives: that of the two without which they take less."""

    def seconds(cluster: ClusterSpec) -> float:
        terms = _terms(predict(question.on(cluster), plan), of)
        return sum(term.seconds for term in terms if term.kind == "collective")

    these = question.cluster.among(plan.all_devices)
    at_once = with_rails(these, lambda rail: replace(rail, alpha=0.0))
    wide = with_rails(these, lambda rail: replace(rail, bandwidth=rail.bandwidth * 1e6))
    return "latency" if seconds(at_once) <= seconds(wide) else "bandwidth"
