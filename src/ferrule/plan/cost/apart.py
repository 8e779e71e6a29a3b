"""Prediction for prompts on one group of devices and tokens on another (disaggregated serving). Pure."""

from __future__ import annotations

from dataclasses import replace

from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.memory import cache_bytes, state_bytes
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Prediction, Term
from ferrule.plan.question import Question


def joined(question: Question, plan: Plan, prompts: Plan, first: Prediction, then: Prediction) -> Prediction:
    """What ``plan`` does with its ``prompts``, of which ``first`` is predicted, and ``then`` of its own ranks: of the
    former the time to the first token, of the latter all else, since prompts and tokens do not hold each other up. The
    caches of a prompt are handed over layer by layer while later ones are computed (Mooncake, 2024), so that only what
    cables take longer than that, and the last layer, are waited for.

    Each device of a group hands what it has to its fellows of the other, all at once. Raises `PlanError` where no
    cables join them.
    """
    handing, where = handing_over(question, plan, prompts)
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


def handing_over(question: Question, plan: Plan, prompts: Plan) -> tuple[float, str]:
    """Seconds in which a prompt's caches go from the one group to the other, and the slowest way."""
    exchange = Exchange(question.cluster, plan.all_devices)
    parts = [(stage, share) for stage in prompts.stages for share in stage.shares]
    times = []
    for place, ((stage, share), here) in enumerate(zip(parts, prompts.devices, strict=True)):
        size = cache_bytes(question, stage, share, question.work.prompt) + state_bytes(question, stage)
        there = plan.devices[place * len(plan.devices) // len(parts)]
        times.append((exchange.message(here, there, size), exchange.route(here, there).where))
    return max(times)
