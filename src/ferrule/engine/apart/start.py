"""Start of a model on two groups of ranks: of this machine, of a lab, or wherever planners place them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ferrule.engine.apart.engine import ApartEngine
from ferrule.engine.device_names import CPU
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

AS_PLANNED = 0
"""Ranks for prompts: those of the plan (`Plan.prompts`)."""


def check_apart(options: EngineOptions) -> None:
    """Raises `ConfigError` where the ranks of ``options`` could not be given prompts by others."""
    if options.device != CPU:
        raise ConfigError(
            f"--prefill-tp with --device {options.device}: prompts are handed over between processors only; leave one "
            "of them out"
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


async def start_apart(
    options: EngineOptions,
    prefill: int,
    on_progress: ProgressCallback | None = None,
    *,
    lab: Lab | None = None,
    choose_plan: PlanChoice | None = None,
) -> ApartEngine:
    """Load a model twice: on the ranks that ``options`` ask for, for answers, and on ``prefill`` others, into which
    each layer is cut, for prompts; `AS_PLANNED`: on those that the plan has for them. In a ``lab`` these are on the
    hosts after those. ``choose_plan``: as of `ferrule.engine.start`. Raises as that does, and `ConfigError` for options
    that do not go with it."""
    check_apart(options)
    model = await prepared(options, choose_plan, on_progress)
    apart, model = _for_prompts(model, prefill), replace(model, plan=model.plan.alone)
    _check_room(model, apart)
    threads = rank_threads(options.threads, model.plan.world_size + apart.plan.world_size)
    shared = replace(options, threads=threads, copies=2)
    first, secret = model.plan.world_size, secrets.token_hex(32)
    prompts = LocalEngine(
        replace(prompt_options(shared, prefill), copies_left=1),
        apart,
        LocalPlanner(lab, standby=options.standby, first_host=first).about(apart),
        secret,
    )
    planner = LocalPlanner(lab, standby=options.standby).about(model)
    engine = ApartEngine(answer_options(shared), model, planner, prompts, secret, beyond=lab is not None)
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
) -> ApartEngine:
    """Load ``model`` twice, where these place it: on ranks for answers and on others for prompts, which share no host
    with them. Where the latter cannot be loaded now they are later. Raises as `ferrule.engine.start` does."""
    check_apart(options)
    apart, secret = _for_prompts(model, 1), secrets.token_hex(32)
    computing = LocalEngine(prompt_options(options, 1), apart, prompts(apart), secret)
    engine = ApartEngine(answer_options(options), model, answers(model), computing, secret, beyond=True)
    loading = [asyncio.create_task(each.load(on_progress)) for each in (engine, computing)]
    try:
        await asyncio.wait(loading)
        own, others = (task.exception() for task in loading)
        if own is not None or (others is not None and not isinstance(others, ModelUnavailable)):
            raise own or others or ModelUnavailable("the model is not loaded")
        if others is not None:
            engine.load_later(others)
    except BaseException:
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        await engine.close()
        raise
    return engine


def answer_options(options: EngineOptions) -> EngineOptions:
    return replace(options, hands_over=ANSWERS)


def prompt_options(options: EngineOptions, prefill: int) -> EngineOptions:
    """Of ``prefill`` ranks for prompts, beside those of ``options`` for answers."""
    return replace(
        options, hands_over=PROMPTS, tensor=max(1, prefill), pipeline=1, shares=(), expert_parallel=False,
        expert_exchange=False, speculate="off", prefix_disk=0,
    )  # fmt: skip


def _for_prompts(model: PreparedModel, prefill: int) -> PreparedModel:
    """Without a draft model: no tokens are guessed there."""
    undrafted = replace(model.spec, draft=None)
    plan = model.plan.prompts or make_plan(undrafted, tensor=max(1, prefill))
    return replace(model, spec=undrafted, plan=plan, draft=None)


def _check_room(answers: PreparedModel, prompts: PreparedModel) -> None:
    """Raises `PlanError` (with ``needed`` and ``available``) where this machine has too little memory for both."""
    both = (each for model in (answers, prompts) for each in rank_memory(model.spec, model.plan, context=LEAST_CONTEXT))
    needed, (free, _) = sum(use.total for use in both), memory_free()
    if needed > free:
        raise PlanError(
            f"{answers.spec.name} does not fit twice, once for prompts and once for answers: that needs "
            f"{needed / 2**30:.1f} GiB, and this machine has {free / 2**30:.1f} free; leave --prefill-tp out",
            needed=needed,
            available=free,
        )
