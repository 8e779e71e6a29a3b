"""JSON schema of `ferrule plan --json`. docs/planner.md describes it; fields are only ever added."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.plan import Candidate, Question, SearchResult, Term
from ferrule.plan.cluster import CORES_KEEP
from ferrule.plan.explain import Bottleneck, Shortage, WhatIf, cautions
from ferrule.plan.saved import KIND, VERSION, ModelFacts


def question_json(question: Question) -> dict[str, object]:
    model, cluster = question.model, question.cluster
    return {
        "kind": KIND,
        "version": VERSION,
        "model": {
            **vars(ModelFacts.of(model)),
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "counted": model.counted,
            "max_context": model.max_context,
            "state_bytes": model.state_bytes(question.runtime.cache_of(model)),
            "notes": model.notes,
            "known_family": model.known_family,
        },
        "cluster": {
            "devices": cluster.devices,
            "links": cluster.pairs,
            "cores": cluster.cores,
            **{name: getattr(cluster, name) for name in CORES_KEEP},
            "notes": cluster.notes,
        },
        "work": question.work,
        "objective": question.objective,
        "runtime": question.runtime.name,
        "cautions": cautions(question),
    }


def answer_json(
    question: Question,
    answers: SearchResult,
    candidates: Sequence[Candidate],
    best: Candidate,
    found: Bottleneck,
    changes: Sequence[WhatIf],
    verdict: str,
) -> dict[str, object]:
    """Plans, the best first; which of them the engine can run best; the best machine alone; why, and what would help.

    In seconds, bytes, watts, US dollars.
    """
    return question_json(question) | {
        "plans": [candidate_json(each) for each in candidates],
        "best": candidates.index(best),
        "exact": answers.exact,
        "notes": answers.notes,
        "alone": candidate_json(answers.single),
        "verdict": verdict,
        "bottleneck": {**vars(found), "text": found.text},
        "what_if": [
            {"text": each.text, "before": each.before, "after": each.after, "unit": question.aim.unit}
            for each in changes
        ],
    }


def shortage_json(question: Question, found: Shortage) -> dict[str, object]:
    """The same where nothing fits."""
    return question_json(question) | {
        "plans": [],
        "shortage": {
            "device": found.use.device,
            "needed": found.use.needed,
            "available": found.use.room,
            "missing": found.missing,
            "closest": candidate_json(found.closest),
            "nearest": [{"text": each.text, "plan": candidate_json(each.candidate)} for each in found.nearest],
        },
    }


def candidate_json(candidate: Candidate) -> dict[str, object]:
    plan, prediction = candidate.plan, candidate.prediction
    return {
        "strategy": plan.strategy,
        "obstacle": plan.obstacle,
        "fits": prediction.fits,
        "stages": plan.stages,
        "token_seconds": prediction.token_seconds,
        "tokens_per_s": prediction.tokens_per_s,
        "ttft_seconds": prediction.ttft_seconds,
        "concurrency": prediction.concurrency,
        "step_seconds": prediction.step_seconds,
        "throughput": prediction.throughput,
        "largest_context": prediction.largest_context,
        "watts": prediction.watts,
        "joules_per_token": prediction.joules,
        "dollars_per_million": prediction.dollars_per_million,
        "memory": [{**vars(use), "margin": use.margin} for use in prediction.memory],
        "terms": [_term(term, prediction.token_seconds) for term in prediction.terms],
        "prompt_terms": [_term(term, prediction.ttft_seconds) for term in prediction.prompt_terms],
        "step_terms": [_term(term, prediction.step_seconds) for term in prediction.step_terms],
    }


def _term(term: Term, total: float) -> dict[str, object]:
    return {**vars(term), "part": term.seconds / total if total else 0.0}
