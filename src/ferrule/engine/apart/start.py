"""Start of a model on two groups of ranks of this machine, or of a lab."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ferrule.engine.apart.engine import ApartEngine
from ferrule.engine.device_names import CPU
from ferrule.engine.host.local import LocalEngine
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.prepare import PlanChoice, PreparedModel, prepared
from ferrule.engine.host.processes import rank_threads
from ferrule.engine.options import ANSWERS, PROMPTS, EngineOptions
from ferrule.engine.types import ProgressCallback
from ferrule.errors import ConfigError, PlanError
from ferrule.plan import make_plan, rank_memory
from ferrule.plan.one_machine import LEAST_CONTEXT
from ferrule.process.memory import memory_free

if TYPE_CHECKING:
    from ferrule.lab import Lab


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
    each layer is cut, for prompts. In a ``lab`` these are on the hosts after those. ``choose_plan``: as of
    `ferrule.engine.start`. Raises as that does, and `ConfigError` for options that do not go with it."""
    check_apart(options)
    model = await prepared(options, choose_plan, on_progress)
    undrafted = replace(model.spec, draft=None)
    apart = replace(model, spec=undrafted, plan=make_plan(undrafted, tensor=prefill), draft=None)
    _check_room(model, apart)
    threads = rank_threads(options.threads, model.plan.world_size + prefill)
    shared = replace(options, threads=threads, copies=2)
    for_prompts = replace(
        shared, hands_over=PROMPTS, tensor=prefill, pipeline=1, shares=(), expert_parallel=False, expert_exchange=False,
        speculate="off", prefix_disk=0, copies_left=1,
    )  # fmt: skip
    first = model.plan.world_size
    prompts = LocalEngine(for_prompts, apart, LocalPlanner(lab, standby=options.standby, first_host=first).about(apart))
    engine = ApartEngine(
        replace(shared, hands_over=ANSWERS),
        model,
        LocalPlanner(lab, standby=options.standby).about(model),
        prompts,
    )
    try:
        await prompts.load(on_progress)  # one after the other, so that each knows what memory is left
        prompts.all_loaded()
        await engine.load(on_progress)
    except BaseException:
        await engine.close()
        raise
    return engine


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
