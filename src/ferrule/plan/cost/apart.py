"""Prediction for prompts on one group of devices and tokens on another (disaggregated serving)."""

from __future__ import annotations

from dataclasses import replace

from ferrule.errors import PlanError
from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.memory import cache_bytes, state_bytes
from ferrule.plan.cost.predictor import predict
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Prediction, Term
from ferrule.plan.question import Question


def predict_apart(question: Question, prompts: Plan, tokens: Plan) -> Prediction:
    """Of ``prompts`` the time to the first token, of ``tokens`` all others: prompts and tokens then do not hold each
    other up. The caches of a prompt are handed over layer by layer while later ones are computed (Mooncake, 2024), so
    that only what cables take longer than that, and the last layer, are waited for.

    Each device of a group hands what it has to its fellows of the other, all at once. Raises `PlanError` where a device
    is in both groups or no cables join them.
    """
    both = set(prompts.devices) & set(tokens.devices)
    if both:
        raise PlanError(f"{', '.join(sorted(both))}: a device is for prompts or for tokens, not for both")
    first, then = (
        predict(question.with_work(concurrency=1, context=question.work.prompt), prompts),
        predict(question, tokens),
    )
    handing, where = _handing(question, prompts, tokens)
    last = handing / question.model.layers
    waited = max(handing - first.ttft_seconds, 0.0) + last
    return replace(
        then,
        ttft_seconds=first.ttft_seconds + waited,
        prompt_terms=(*first.prompt_terms, Term("hop", where, waited)),
        memory=(*first.memory, *then.memory),
        interval=then.interval._replace(prompt=first.interval.prompt),
        watts=None,
        joules=None,
        dollars_per_million=None,
    )


def _handing(question: Question, prompts: Plan, tokens: Plan) -> tuple[float, str]:
    """Seconds in which a prompt's caches go from the one group to the other, and the slowest way."""
    exchange = Exchange(question.cluster, (*prompts.devices, *tokens.devices))
    parts = [(stage, share) for stage in prompts.stages for share in stage.shares]
    times = []
    for place, ((stage, share), here) in enumerate(zip(parts, prompts.devices, strict=True)):
        size = cache_bytes(question, stage, share, question.work.prompt) + state_bytes(question, stage)
        there = tokens.devices[place * len(tokens.devices) // len(parts)]
        times.append((exchange.message(here, there, size), exchange.route(here, there).where))
    return max(times)
