"""JSON schema of `ferrule plan --json`. docs/planner.md describes it; fields are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from ferrule.model.spec import Counted
from ferrule.plan import (
    Candidate,
    DeviceSpec,
    Objective,
    PairSpec,
    Question,
    SearchResult,
    Stage,
    Term,
    Workload,
)
from ferrule.plan.explain import Bottleneck, Shortage, WhatIf, cautions, tight
from ferrule.plan.explain.bottleneck import BottleneckKind, Timed
from ferrule.plan.prediction import Between, MemoryUse
from ferrule.plan.replicas import Replicated
from ferrule.plan.saved import KIND, VERSION, ModelFacts

if TYPE_CHECKING:
    from ferrule.engine.rank.step.explain import StepText


@dataclass(frozen=True)
class ModelJson(ModelFacts):
    """``model``: by what it is told from another, and how it was counted. ``draft_bytes``: weights of the model that is
    to guess for it; 0: there is none."""

    parameters: int
    active_parameters: int
    counted: Counted
    max_context: int
    state_bytes: float
    cache_bits: int
    draft_bytes: int
    notes: tuple[str, ...]
    known_family: bool
    encoder: bool


class ClusterJson(msgspec.Struct, frozen=True):
    """``cluster``; fields as those of `ClusterSpec`."""

    devices: tuple[DeviceSpec, ...]
    links: tuple[PairSpec, ...]
    cores: int | None
    cores_together: float
    cores_in_turns: float | None
    cores_awake: float
    notes: tuple[str, ...]


class MemoryJson(msgspec.Struct, frozen=True):
    """Fields and properties of `MemoryUse`, in bytes."""

    device: str
    weights: int
    cache: int
    activations: int
    runtime: int
    room: int
    reserve: int
    margin: int

    @classmethod
    def of(cls, use: MemoryUse) -> MemoryJson:
        return cls(**vars(use), margin=use.margin)


@dataclass(frozen=True)
class TermJson(Term):
    """``part``: of the time that the terms make together."""

    part: float


class PromptsJson(msgspec.Struct, frozen=True):
    """Split of the ranks for prompts."""

    stages: tuple[Stage, ...]


class CandidateJson(msgspec.Struct, frozen=True):
    """One of ``plans``. In seconds, bytes, watts, US dollars. ``prompts``: stages of the ranks that compute prompts for
    those of ``stages``; None: these do. ``answer_seconds``: of a prompt and of ``work.answer`` tokens."""

    strategy: str
    obstacle: str | None
    fits: bool
    stages: tuple[Stage, ...]
    token_seconds: float
    tokens_per_s: float
    ttft_seconds: float
    concurrency: int
    step_seconds: float
    throughput: float
    tokens_per_s_between: Between
    ttft_seconds_between: Between
    throughput_between: Between
    largest_context: int
    watts: float | None
    joules_per_token: float | None
    dollars_per_million: float | None
    memory: tuple[MemoryJson, ...]
    terms: tuple[TermJson, ...]
    prompt_terms: tuple[TermJson, ...]
    step_terms: tuple[TermJson, ...]
    prompts: PromptsJson | None
    answer_seconds: float

    @classmethod
    def of(cls, candidate: Candidate) -> CandidateJson:
        plan, prediction = candidate.plan, candidate.prediction
        return cls(
            strategy=plan.strategy,
            obstacle=plan.obstacle,
            fits=prediction.fits,
            stages=plan.stages,
            token_seconds=prediction.token_seconds,
            tokens_per_s=prediction.tokens_per_s,
            ttft_seconds=prediction.ttft_seconds,
            concurrency=prediction.concurrency,
            step_seconds=prediction.step_seconds,
            throughput=prediction.throughput,
            tokens_per_s_between=prediction.tokens_between,
            ttft_seconds_between=prediction.ttft_between,
            throughput_between=prediction.throughput_between,
            largest_context=prediction.largest_context,
            watts=prediction.watts,
            joules_per_token=prediction.joules,
            dollars_per_million=prediction.dollars_per_million,
            memory=tuple(map(MemoryJson.of, prediction.memory)),
            terms=_terms(prediction.terms, prediction.token_seconds),
            prompt_terms=_terms(prediction.prompt_terms, prediction.ttft_seconds),
            step_terms=_terms(prediction.step_terms, prediction.step_seconds),
            prompts=None if plan.prompts is None else PromptsJson(plan.prompts.stages),
            answer_seconds=prediction.answer_seconds,
        )


def _terms(terms: Sequence[Term], total: float) -> tuple[TermJson, ...]:
    return tuple(TermJson(**vars(term), part=term.seconds / total if total else 0.0) for term in terms)


class QuestionJson(msgspec.Struct, frozen=True):
    """Question to the planner."""

    kind: str
    version: int
    model: ModelJson
    cluster: ClusterJson
    work: Workload
    objective: Objective
    runtime: str
    cautions: tuple[str, ...]

    @classmethod
    def of(cls, question: Question, more: Sequence[str] = ()) -> QuestionJson:
        """``more``: cautions beside those of the question."""
        model, cluster = question.model, question.cluster
        return QuestionJson(
            kind=KIND,
            version=VERSION,
            model=ModelJson(
                **vars(ModelFacts.of(model)),
                parameters=model.parameters,
                active_parameters=model.active_parameters,
                counted=model.counted,
                max_context=model.max_context,
                state_bytes=model.state_bytes(question.runtime.cache_of(model)),
                cache_bits=model.cache_bits,
                draft_bytes=0 if model.draft is None else model.draft.bytes,
                notes=model.notes,
                known_family=model.known_family,
                encoder=model.encoder,
            ),
            cluster=ClusterJson(
                devices=cluster.devices,
                links=cluster.pairs,
                cores=cluster.cores,
                cores_together=cluster.cores_together,
                cores_in_turns=cluster.cores_in_turns,
                cores_awake=cluster.cores_awake,
                notes=cluster.notes,
            ),
            work=question.work,
            objective=question.objective,
            runtime=question.runtime.name,
            cautions=(*cautions(question), *more),
        )


class BottleneckJson(msgspec.Struct, frozen=True):
    """Fields and properties of `Bottleneck`."""

    kind: BottleneckKind
    where: str
    seconds: float
    part: float
    of: Timed
    text: str


class WhatIfJson(msgspec.Struct, frozen=True):
    """Fields as those of `WhatIf`, and the ``unit`` of the objective's figure."""

    text: str
    before: float
    after: float
    unit: str


class ReplicasJson(msgspec.Struct, frozen=True):
    """Whole copies beside the best plan of one, and the ``verdict`` on them. ``copies``: each for its share of the
    sequences; empty, and figures None, where they do not fit."""

    verdict: str
    copies: tuple[CandidateJson, ...] = ()
    throughput: float | None = None
    tokens_per_s: float | None = None
    ttft_seconds: float | None = None


def replicas_json(found: Replicated | None, verdict: str) -> ReplicasJson:
    if found is None:
        return ReplicasJson(verdict)
    copies = tuple(map(CandidateJson.of, found.copies))
    return ReplicasJson(verdict, copies, found.throughput, found.tokens_per_s, found.ttft_seconds)


class AnswerJson(QuestionJson, frozen=True):
    """Plans, the best first; which of them the engine can run ``best``; the best machine ``alone``; why, and what would
    help. ``steps``: only where they were asked for; ``replicas``: for ``throughput`` of several sequences."""

    plans: tuple[CandidateJson, ...]
    best: int
    exact: bool
    notes: tuple[str, ...]
    alone: CandidateJson
    verdict: str
    bottleneck: BottleneckJson
    what_if: tuple[WhatIfJson, ...]
    steps: tuple[StepText, ...] | UnsetType = UNSET
    replicas: ReplicasJson | UnsetType = UNSET


class NearestJson(msgspec.Struct, frozen=True):
    """A case that would fit."""

    text: str
    plan: CandidateJson


class ShortageJson(msgspec.Struct, frozen=True):
    """Missing bytes on the device that lacks most in the plan that lacks least."""

    device: str
    needed: int
    available: int
    missing: int
    closest: CandidateJson
    nearest: tuple[NearestJson, ...]


class NothingFitsJson(QuestionJson, frozen=True):
    """The answer where no plan fits."""

    plans: tuple[CandidateJson, ...]
    shortage: ShortageJson


def answer_json(
    question: Question,
    answers: SearchResult,
    candidates: Sequence[Candidate],
    best: Candidate,
    found: Bottleneck,
    changes: Sequence[WhatIf],
    verdict: str,
    steps: Sequence[StepText] = (),
    replicas: ReplicasJson | None = None,
) -> AnswerJson:
    return AnswerJson(
        **asdict(QuestionJson.of(question, tight(best))),
        plans=tuple(map(CandidateJson.of, candidates)),
        best=candidates.index(best),
        exact=answers.exact,
        notes=answers.notes,
        alone=CandidateJson.of(answers.single),
        verdict=verdict,
        bottleneck=BottleneckJson(**vars(found), text=found.text),
        what_if=tuple(WhatIfJson(each.text, each.before, each.after, question.aim.unit) for each in changes),
        steps=tuple(steps) or UNSET,
        replicas=replicas or UNSET,
    )


def shortage_json(question: Question, found: Shortage) -> NothingFitsJson:
    return NothingFitsJson(
        **asdict(QuestionJson.of(question)),
        plans=(),
        shortage=ShortageJson(
            device=found.use.device,
            needed=found.use.needed,
            available=found.use.room,
            missing=found.missing,
            closest=CandidateJson.of(found.closest),
            nearest=tuple(NearestJson(each.text, CandidateJson.of(each.candidate)) for each in found.nearest),
        ),
    )
