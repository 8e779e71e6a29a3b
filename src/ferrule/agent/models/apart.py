"""A model of a cluster whose prompts are computed by hosts of their own: what its record says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrule.agent.placement.apart import given_division, planned_division
from ferrule.cluster.desired import DesiredModel
from ferrule.cluster.home import ClusterHome
from ferrule.engine import EngineOptions, Health
from ferrule.engine.apart.start import check_apart
from ferrule.engine.host.prepare import PreparedModel
from ferrule.plan import SavedPlan, parse_plan


@dataclass(frozen=True)
class Wanted:
    """``saved``: a plan that has ranks for prompts; None: ``prefill`` of them, or (0) as the planner says."""

    prefill: int
    saved: SavedPlan | None = None


@dataclass(frozen=True)
class Divided:
    """The record as if it were of ``answers`` alone, and of ``prompts`` alone; ``reason``: for people."""

    answers: DesiredModel
    prompts: DesiredModel
    reason: str


def wanted_apart(desired: DesiredModel) -> Wanted | None:
    """None where the ranks for answers are to compute prompts."""
    if desired.plan is not None:
        saved = parse_plan(desired.plan, "the plan of the model")
        return None if saved.prompts is None else Wanted(0, saved)
    return None if desired.prefill is None else Wanted(desired.prefill)


async def divide(
    home: ClusterHome, options: EngineOptions, desired: DesiredModel, wanted: Wanted, model: PreparedModel
) -> Divided | None:
    """None where the planner finds that it does not pay. Raises `ConfigError` for what cannot be, and `PlanError`."""
    check_apart(options)
    only = replace(
        desired, device=desired.prefill_device or desired.device, tensor=wanted.prefill or None, pipeline=None,
        shares=None, expert_parallel=None, expert_exchange=None, speculate=None, prefix_disk=None,
    )  # fmt: skip
    if wanted.saved is not None:
        prompts = wanted.saved.prompts
        assert prompts is not None
        wanted.saved.for_model(model.spec)
        return Divided(
            replace(desired, plan=wanted.saved.alone.to_json(), hosts=wanted.saved.hosts),
            replace(only, plan=prompts.to_json(), hosts=prompts.hosts, device=prompts.device),
            f"Prompts on {', '.join(dict.fromkeys(prompts.hosts))}",
        )
    hosts = desired.hosts or ()
    if wanted.prefill:
        found = await given_division(home, hosts, desired.prefill_hosts or ())
    else:
        context = options.max_context or model.longest
        planned = await planned_division(home, options, hosts, model.spec, context)
        if planned is None:
            return None
        found = planned
    return Divided(replace(desired, hosts=found.answers), replace(only, hosts=found.prompts), found.reason)


def alone_with_prompts(health: Health) -> str:
    """Of ranks for answers that compute prompts, too, until the others are there; empty where these are."""
    use = health.hand_over
    if use is None or use.joined:
        return ""
    why = use.error or ("they join these" if use.state == "ready" else f"they are {use.state}")
    return f"prompts are computed where answers are until other ranks can do so ({why})"
