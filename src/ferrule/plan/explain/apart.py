"""Whether prompts are to be computed by devices of their own: sentences."""

from __future__ import annotations

from ferrule.plan.cost.apart import handing_over
from ferrule.plan.cost.predictor import predict
from ferrule.plan.plan import Plan
from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Question
from ferrule.units import format_seconds


def apart_verdict(question: Question, best: Candidate, plain: Candidate | None) -> str:
    """About the ``best`` plan, whose prompts other devices compute than tokens. ``plain``: the best one of which that
    is not so, if one fits."""
    prompts = best.plan.prompts
    assert prompts is not None
    handing, where = handing_over(question, best.plan, prompts)
    told = f"Prompts on {named(prompts)}, tokens on {named(best.plan)}: "
    seconds = best.prediction.ttft_seconds
    alone = predict(question, best.plan.alone).ttft_seconds
    told += (
        f"the first token comes after {format_seconds(seconds)}, {alone / seconds:.2f} times as soon as by "
        f"{named(best.plan)} alone, and tokens as fast"
    )
    if plain is not None and question.objective == "answer":
        apart, other = (format_seconds(each.prediction.answer_seconds) for each in (best, plain))
        told += f"; an answer of {question.work.answer:,} tokens takes {apart}, and {other} without, by "
        told += named(plain.plan)
    return f"{told}. Handing a prompt over takes {format_seconds(handing)} over {where}, while it is computed."


def named(plan: Plan) -> str:
    """Its devices."""
    names = plan.devices
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
