"""Start of a model on two groups of ranks: of this machine, of a lab, or wherever planners place them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ferrule.engine.apart.engine import ApartEngine
from ferrule.engine.device_names import CPU, parse_device, parse_devices
from ferrule.engine.host.local import LocalEngine
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.placement import Planner
from ferrule.engine.host.prepare import PlanChoice, PreparedModel, prepared
from ferrule.engine.host.processes import rank_threads
from ferrule.engine.options import ANSWERS, PROMPTS, EngineOptions
from ferrule.engine.types import ProgressCallback
from ferrule.errors import ConfigError, ModelUnavailable, PlanError
from ferrule.plan import make_plan, rank_memory
from ferrule.plan.one_machine import LEAST_CONTEXT
from ferrule.process.memory import memory_free

if TYPE_CHECKING:
    from ferrule.lab import Lab

AUTO = "auto"
AS_PLANNED = 0
"""Ranks for prompts: those of the plan (`Plan.prompts`)."""


def check_apart(options: EngineOptions) -> None:
    """Raises `ConfigError` where the ranks of ``options`` could not be given prompts by others."""
    if options.kv_cache != AUTO and not on_processors(options):
        raise ConfigError(
            f"--kv-cache {options.kv_cache} is handed over between processors only: leave it or --device "
            f"{options.device} out"
        )
    if options.context_parallel > 1:
        raise ConfigError(
            "--prefill-tp hands over blocks to ranks that keep whole ones, and with --cp each has some of their pages; "
            "leave one of them out"
        )
    if not options.prefix_cache:
        raise ConfigError(
            "--prefill-tp hands over blocks of the prefix cache, which --no-prefix-cache switches off; leave one of "
            "them out"
        )


def on_processors(options: EngineOptions) -> bool:
    return set(parse_devices(options.device)) == {CPU}


def _share_memory(*both: EngineOptions) -> bool:
    """Whether ranks of both may be on one device."""
    one, other = ([parse_device(name) for name in parse_devices(each.device)] for each in both)
    return any(a == b or (a[0] == b[0] and None in (a[1], b[1])) for a in one for b in other)


async def start_apart(
    options: EngineOptions,
    prefill: int,
    on_progress: ProgressCallback | None = None,
    *,
    device: str | None = None,
    lab: Lab | None = None,
    choose_plan: PlanChoice | None = None,
) -> ApartEngine:
    """Load a model twice: on the ranks that ``options`` ask for, for answers, and on ``prefill`` others, into which
    each layer is cut, for prompts; `AS_PLANNED`: on those that the plan has for them. In a ``lab`` these are on the
    hosts after those. ``device``: where these compute, as of `EngineOptions`; None: as the others. ``choose_plan``: as
    of `ferrule.engine.start`. Raises as that does, and `ConfigError` for options that do not go with it."""
    for_prompts = prompt_options(options, prefill, device)
    for each in (options, for_prompts):
        check_apart(each)
    model = await prepared(options, choose_plan, on_progress)
    apart, model = _for_prompts(model, prefill), replace(model, plan=model.plan.alone)
    here = [one for one, each in ((model, options), (apart, for_prompts)) if on_processors(each)]
    _check_room(here)
    ranks = max(sum(each.plan.world_size for each in here), model.plan.world_size, apart.plan.world_size)
    copies = 2 if _share_memory(options, for_prompts) else 1
    shared: dict[str, Any] = {"threads": rank_threads(options.threads, ranks), "copies": copies}
    first, secret = model.plan.world_size, secrets.token_hex(32)
    prompts = LocalEngine(
        replace(for_prompts, **shared, copies_left=copies - 1),
        apart,
        LocalPlanner(lab, standby=options.standby, first_host=first).about(apart),
        secret,
    )
    planner = LocalPlanner(lab, standby=options.standby).about(model)
    engine = ApartEngine(
        replace(answer_options(options), **shared), model, planner, prompts, secret, beyond=lab is not None
    )
    try:
        await prompts.load(on_progress)  # one after the other, so that each knows what memory is left
        prompts.all_loaded()
        await engine.load(on_progress)
    except BaseException:
        await engine.close()
        raise
    return engine


async def start_apart_on_hosts(
    options: EngineOptions,
    model: PreparedModel,
    answers: Callable[[PreparedModel], Planner],
    prompts: Callable[[PreparedModel], Planner],
    on_progress: ProgressCallback | None = None,
    *,
    device: str | None = None,
) -> ApartEngine:
    """Load ``model`` twice, where these place it: on ranks for answers and on others for prompts, which share no host
    with them. Where the latter cannot be loaded now they are later. ``device``: as of `start_apart`. Raises as
    `ferrule.engine.start` does."""
    apart, secret = _for_prompts(model, 1), secrets.token_hex(32)
    for_prompts = prompt_options(options, 1, device)
    for each in (options, for_prompts):
        check_apart(each)
    computing = LocalEngine(for_prompts, apart, prompts(apart), secret)
    engine = ApartEngine(answer_options(options), model, answers(model), computing, secret, beyond=True)
    loading = [asyncio.create_task(each.load(on_progress)) for each in (engine, computing)]
    try:
        await asyncio.wait(loading)
        own, others = (task.exception() for task in loading)
        if isinstance(others, ModelUnavailable) and own is None:
            engine.load_later(others)
        elif (error := own or others) is not None:
            raise error
    except BaseException:
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        await engine.close()
        raise
    return engine


def answer_options(options: EngineOptions) -> EngineOptions:
    return replace(options, hands_over=ANSWERS)


def prompt_options(options: EngineOptions, prefill: int, device: str | None = None) -> EngineOptions:
    """Of ``prefill`` ranks for prompts on ``device``, beside those of ``options`` for answers."""
    return replace(
        options, device=device or options.device, hands_over=PROMPTS, tensor=max(1, prefill), pipeline=1, shares=(),
        expert_parallel=False, expert_exchange=False, speculate="off", prefix_disk=0,
    )  # fmt: skip


def _for_prompts(model: PreparedModel, prefill: int) -> PreparedModel:
    """Without a draft model: no tokens are guessed there."""
    undrafted = replace(model.spec, draft=None)
    plan = model.plan.prompts or make_plan(undrafted, tensor=max(1, prefill))
    return replace(model, spec=undrafted, plan=plan, draft=None)


def _check_room(models: Sequence[PreparedModel]) -> None:
    """Raises `PlanError` (with ``needed`` and ``available``) where this machine has too little memory for two
    ``models`` of its processors; for one a rank finds out by itself."""
    if len(models) < 2:
        return
    both = (each for model in models for each in rank_memory(model.spec, model.plan, context=LEAST_CONTEXT))
    needed, (free, _) = sum(use.total for use in both), memory_free()
    if needed > free:
        raise PlanError(
            f"{models[0].spec.name} does not fit twice, once for prompts and once for answers: that needs "
            f"{needed / 2**30:.1f} GiB, and this machine has {free / 2**30:.1f} free; leave --prefill-tp out",
            needed=needed,
            available=free,
        )
