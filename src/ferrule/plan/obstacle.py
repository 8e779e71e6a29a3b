"""Reasons why the built-in engine cannot run a plan."""

from __future__ import annotations

from ferrule.model.spec import ModelSpec
from ferrule.plan.plan import Plan, Stage


def obstacle_of(model: ModelSpec, plan: Plan) -> str | None:
    """Or None, if it can."""
    if len(plan.stages) > 1 and model.pipeline_refusal:
        return model.pipeline_refusal
    if len({stage.width for stage in plan.stages}) > 1:
        return "the built-in engine has equally many ranks in every stage"
    return next((reason for stage in plan.stages if (reason := stage_obstacle(model, stage))), None)


def stage_obstacle(model: ModelSpec, stage: Stage) -> str | None:
    """Reason why it cannot run ``stage``, or None."""
    if stage.width == 1:
        return None
    if not stage.even:
        return "the built-in engine cuts layers into equal parts only"
    cuts = {layer.experts.cut for layer in model.decoder if layer.experts}
    if stage.experts:
        if model.expert_refusal:
            return model.expert_refusal
        if stage.shares[0].query == 1.0:
            return "the built-in engine cuts attention, too, where it gives out experts"
        if cuts != {"whole"}:
            return f"the built-in engine cuts the experts of {model.architecture} instead of giving them out whole"
    elif "whole" in cuts:
        return f"the built-in engine gives out the experts of {model.architecture} whole"
    return model.tensor_obstacle(stage.width)
