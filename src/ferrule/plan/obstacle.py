"""Reasons why the built-in engine cannot run a plan."""

from __future__ import annotations

from ferrule.model.spec import ModelSpec
from ferrule.plan.plan import Plan, Stage


def obstacle_of(model: ModelSpec, plan: Plan) -> str | None:
    """Or None, if it can."""
    if plan.prompts is not None and (reason := model.hand_over_obstacle or obstacle_of(model, plan.prompts)):
        return reason
    if plan.prompts is not None and max(plan.context, plan.prompts.context) > 1:
        return "the built-in engine hands prompts over to ranks that keep keys and values whole only"
    if len(plan.stages) > 1 and model.pipeline_refusal:
        return model.pipeline_refusal
    return next((reason for stage in plan.stages if (reason := stage_obstacle(model, stage))), None)


def stage_obstacle(model: ModelSpec, stage: Stage) -> str | None:
    """Reason why it cannot run ``stage``, or None."""
    if stage.width == 1:
        return None
    if stage.context:
        return model.context_obstacle
    cuts = {layer.experts.cut for layer in model.decoder if layer.experts}
    if stage.experts and (reason := model.expert_obstacle(stage.width)):
        return reason
    if stage.exchange and (reason := model.exchange_obstacle):
        return reason
    if not stage.experts and "whole" in cuts:
        return f"the built-in engine gives out the experts of {model.architecture} whole"
    whole = {share.query == 1.0 for share in stage.shares} | {share.width == 1.0 for share in stage.shares}
    if whole == {True} and stage.experts:
        return None  # nothing else is cut
    if True in whole:
        return "the built-in engine cuts attention and dense blocks on all ranks of a stage, or on none"
    return model.tensor_obstacle(stage.width, experts=stage.experts)
