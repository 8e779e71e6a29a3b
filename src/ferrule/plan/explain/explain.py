"""Why a plan is as fast as it is, and what would make it faster: by predicting again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ferrule.model.storage import PLAIN
from ferrule.plan.cluster.changes import one_more
from ferrule.plan.cluster.spec import ClusterSpec, LinkSpec, RailSpec
from ferrule.plan.cost.runtime import BUILT_IN_ENGINE
from ferrule.plan.layout import Candidate, Layout, Prediction, Term, TermKind
from ferrule.plan.question import Question

BottleneckKind = Literal["weights", "cache", "compute", "launch", "latency", "bandwidth", "hop", "disk"]
Timed = Literal["token", "prompt", "step"]
_TIMES: dict[Timed, str] = {
    "token": "token time",
    "prompt": "the prompt's time",
    "step": "the time of a step of all sequences",
}
RDMA_SECONDS = 8e-6
"""A small message by RDMA over USB4, from program to program (`ferrule lab profiles`: usb4-40g-rdma)."""
CABLE_SECONDS = 1e-3
"""What takes longer is no cable that could carry RDMA."""
MENTIONED = 0.01
"""What helps by less than this part is not worth a line."""
NAMED = 4
"""So many places are named; of more the first two."""
PROCESSOR_FLOPS = 10e12
"""What computes faster than this, and was not measured on a processor, is taken to be a GPU."""
WORTH_IT = 1.02
"""What is better by less than this is called as good."""
_WORDS: dict[BottleneckKind, str] = {
    "weights": "reading weights from memory on {}",
    "cache": "reading keys and values from memory on {}",
    "compute": "arithmetic on {}",
    "launch": "starting operations on {}",
    "latency": "all-reduce latency on {}",
    "bandwidth": "all-reduce bandwidth on {}",
    "hop": "messages between stages over {}",
    "disk": "reading weights from disk on {}",
}
_CABLES: frozenset[BottleneckKind] = frozenset({"latency", "bandwidth", "hop"})
_WAITING: frozenset[BottleneckKind] = frozenset({"latency", "hop"})
_BYTES: frozenset[BottleneckKind] = frozenset({"weights", "disk"})
_SHARED: frozenset[BottleneckKind] = frozenset({"weights", "cache", "compute", "disk"})
_ORDINALS = {2: "second", 3: "third", 4: "fourth"}
MANY = 8
"""With more hosts than these one more host or one more cable is no answer."""


@dataclass(frozen=True)
class Bottleneck:
    """What takes most of the time of a token, a prompt, or a step of all sequences. ``part``: of that time."""

    kind: BottleneckKind
    where: str
    seconds: float
    part: float
    of: Timed

    @property
    def words(self) -> str:
        return f"{_WORDS[self.kind].format(self.where)}: {self.part:.0%} of {_TIMES[self.of]}".replace("%", " %")


@dataclass(frozen=True)
class WhatIf:
    """``before`` and ``after``: the objective's figure of the plan as it is, and with the change. ``times``: how many
    times better that is. ``helps``: the kinds of bottleneck that the change is about."""

    words: str
    before: float
    after: float
    times: float
    helps: frozenset[BottleneckKind]


def bottleneck(question: Question, candidate: Candidate) -> Bottleneck:
    """Of a prompt if the time to the first token is asked for, of a step if what many sequences get or use together is,
    else of a token of a single stream."""
    of = _timed(question)
    terms = _terms(candidate.prediction, of)
    by_kind: dict[TermKind, float] = {}
    for term in terms:
        by_kind[term.kind] = by_kind.get(term.kind, 0.0) + term.seconds
    kind = max(by_kind, key=lambda each: (by_kind[each], each))
    where = _places(term for term in terms if term.kind == kind)
    found: BottleneckKind = _collective_kind(question, candidate.layout, of) if kind == "collective" else kind
    total = sum(by_kind.values())
    return Bottleneck(found, where, by_kind[kind], by_kind[kind] / total if total else 0.0, of)


def _places(terms: Iterable[Term]) -> str:
    """Where most of it happens; all places where these are few."""
    ordered = sorted(terms, key=lambda term: -term.seconds)
    names = list(dict.fromkeys(name for term in ordered for name in term.where.split(", ")))
    return ", ".join(names) if len(names) <= NAMED else f"{', '.join(names[:2])} and {len(names) - 2} others"


def _timed(question: Question) -> Timed:
    if question.objective == "ttft":
        return "prompt"
    together = question.objective in ("throughput", "energy") and question.work.concurrency > 1
    return "step" if together else "token"


def _terms(prediction: Prediction, of: Timed) -> tuple[Term, ...]:
    return {"token": prediction.terms, "prompt": prediction.prompt_terms, "step": prediction.step_terms}[of]


def _collective_kind(question: Question, layout: Layout, of: Timed) -> Literal["latency", "bandwidth"]:
    """Which of the two is to blame: without it the collectives take less."""

    def seconds(cluster: ClusterSpec) -> float:
        terms = _terms(question.on(cluster).predicted(layout).prediction, of)
        return sum(term.seconds for term in terms if term.kind == "collective")

    these = question.cluster.among(layout.devices)
    at_once = with_rails(these, lambda rail: replace(rail, alpha=0.0))
    wide = with_rails(these, lambda rail: replace(rail, bandwidth=rail.bandwidth * 1e6))
    return "latency" if seconds(at_once) <= seconds(wide) else "bandwidth"


def with_rails(cluster: ClusterSpec, change: Callable[[RailSpec], RailSpec]) -> ClusterSpec:
    """The same cluster with every rail changed."""
    links = (replace(link, rails=tuple(map(change, link.rails))) for link in cluster.links)
    return replace(cluster, links=tuple(links))


def what_ifs(question: Question, candidate: Candidate, split: Candidate | None = None) -> list[WhatIf]:
    """What would make the plan better by its objective, the most helpful first.

    Lighter weights change the world under the same layout; so do cables and RDMA, under that of ``split`` where the
    plan is for one machine. With one more host the best plan that uses it is looked for.
    """
    return sorted(_changes(question, candidate, split or candidate), key=lambda each: -each.times)


def _changes(question: Question, candidate: Candidate, split: Candidate) -> Iterator[WhatIf]:
    layout, cluster = candidate.layout, question.cluster
    linked = layout if len(layout.devices) > 1 else split.layout
    for change, helps in ((another_cable(cluster, linked), _CABLES), (by_rdma(cluster, linked), _WAITING)):
        if change is not None:
            words, changed = change
            yield from _compared(question, candidate, question.on(changed).predicted(linked), words, helps)
    for name, model in question.lighter:
        if model.bytes < question.model.bytes * 0.9:
            after = question.of(model).predicted(layout)
            yield from _compared(question, candidate, after, f"with weights as {name}", _BYTES)
            break
    if set(layout.devices) == set(cluster.by_name) and len(layout.devices) < MANY:
        name = layout.devices[0]
        more = question.on(one_more(cluster, name)).best()
        if more is not None and len(more.layout.devices) > len(layout.devices):
            yield from _compared(question, candidate, more, f"with one more host like {name}", _SHARED)


def _compared(
    question: Question, now: Candidate, then: Candidate, words: str, helps: frozenset[BottleneckKind]
) -> Iterator[WhatIf]:
    times = question.times_better(then.prediction, now.prediction)
    before, after = question.value(now.prediction), question.value(then.prediction)
    if times is not None and before is not None and after is not None and times >= 1 + MENTIONED:
        yield WhatIf(words, before, after, times, helps)


def another_cable(cluster: ClusterSpec, layout: Layout) -> tuple[str, ClusterSpec] | None:
    """One more cable on the slowest link between devices of the layout, or on all that are as slow."""
    links = cluster.among(layout.devices).links if len(layout.devices) > 1 else ()
    if not links or len(layout.devices) > MANY:
        return None
    slowest = min(link.bandwidth for link in links)
    those = {link.name for link in links if link.bandwidth <= slowest * 1.01}

    def doubled(link: LinkSpec) -> LinkSpec:
        best = max(link.rails, key=lambda rail: rail.bandwidth)
        return replace(link, rails=(*link.rails, replace(best, name=f"{best.name}+")))

    changed = tuple(doubled(link) if link.name in those else link for link in cluster.links)
    first = next(link for link in links if link.name in those)
    which = _ORDINALS.get(len(first.rails) + 1, "further")
    where = f"on {first.name}" if len(those) == 1 else f"on each of {len(those)} links"
    return f"with a {which} cable {where}", replace(cluster, links=changed)


def by_rdma(cluster: ClusterSpec, layout: Layout) -> tuple[str, ClusterSpec] | None:
    """The latency of RDMA on every cable between devices of the layout that TCP uses now."""
    links = cluster.among(layout.devices).links if len(layout.devices) > 1 else ()
    slow = [rail for link in links for rail in link.rails if _could_be_rdma(rail)]
    if not slow:
        return None
    names = {link.name for link in links}
    changed = tuple(
        replace(link, rails=tuple(replace(r, alpha=RDMA_SECONDS) if _could_be_rdma(r) else r for r in link.rails))
        if link.name in names
        else link
        for link in cluster.links
    )
    now = max(rail.alpha for rail in slow) * 1e6
    words = f"with RDMA instead of TCP ({RDMA_SECONDS * 1e6:.0f} µs a message, now {now:.0f})"
    return words, replace(cluster, links=changed)


def _could_be_rdma(rail: RailSpec) -> bool:
    return rail.transport == "tcp" and RDMA_SECONDS < rail.alpha < CABLE_SECONDS


def cautions(question: Question) -> list[str]:
    """What the built-in engine does not do yet although the predictions count on it."""
    if question.runtime is not BUILT_IN_ENGINE:
        return []
    found = []
    if question.model.stored not in PLAIN:
        found.append("the built-in engine runs no quantised weights yet: these figures are of one that does")
    fast = [device for device in question.cluster.devices if not device.kind.endswith("(cpu)")]
    if any(device.half_flops > PROCESSOR_FLOPS for device in fast):
        found.append("the built-in engine does not compute on GPUs yet: these figures are of one that does")
    return found


def verdict(question: Question, best: Candidate, single: Candidate, split: Candidate | None) -> str:
    """One sentence about whether to split at all. ``split``: the best plan over several hosts, if there is one."""
    name = single.layout.devices[0]
    if len(best.layout.devices) > 1:
        lacks = -single.prediction.memory[0].margin
        if lacks > 0:
            return f"One machine is not enough: {name} alone lacks {lacks / 2**30:.1f} GiB."
        times = question.times_better(best.prediction, single.prediction)
        if times is not None and times < WORTH_IT:
            return f"One machine is enough: {name} alone is as good."
        return "" if times is None else f"{times:.2f} times {_better(question)} {name} alone."
    if split is None or not split.prediction.fits:
        return ""
    times = question.times_better(best.prediction, split.prediction)
    if times is None:
        return ""
    hosts = len(split.layout.devices)
    if times < WORTH_IT:
        return f"One machine is as good: {name} alone does what {hosts} would do together."
    return f"Use one machine: {name} alone is {times:.2f} times {_better(question)} the best split over {hosts}."


def _better(question: Question) -> str:
    words = {"context": "the context of", "energy": "as thrifty as"}
    return words.get(question.objective, "as fast as")
