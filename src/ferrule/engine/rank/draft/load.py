"""Loading of the draft model, by the driver: it is where tokens become known first and guesses are announced from, so
that they cost no message. The other ranks have none; one of them sends its files where the driver's host lacks them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from ferrule import fabric
from ferrule.config import FabricSettings, environment, model_settings
from ferrule.engine.architectures import short_context
from ferrule.engine.device_names import device_of
from ferrule.engine.options import LOAD_TIMEOUT, Draft, RankOptions
from ferrule.engine.rank.draft.model import DraftModel
from ferrule.engine.rank.draft.mtp import MtpDraft
from ferrule.engine.rank.driver.pace import Line
from ferrule.engine.rank.runner import Runner, make_runner, rejoin
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.warm_up import DraftTrial, Trial
from ferrule.engine.shards.messages import tell_all
from ferrule.engine.shards.obtain import look, obtain
from ferrule.engine.source import read_config
from ferrule.engine.types import Progress
from ferrule.errors import ModelError
from ferrule.fabric import Group


def obtain_draft(world: Group, options: RankOptions, on_progress: Callable[[Progress], None]) -> Draft | None:
    """The draft model of ``options`` with its directory on this host, if this is the driver's rank and there is one.
    All ranks call it. Raises what `obtain` does."""
    if options.draft is None:
        return None
    driver, asked = options.plan.driver, _options(options, options.draft)
    found, looked = look(asked, model_settings(environment()))
    has = tell_all(world, found is not None, LOAD_TIMEOUT)
    if has[driver]:
        return None if found is None or world.rank != driver else replace(options.draft, directory=str(found.directory))
    source = next((rank for rank, there in enumerate(has) if there), None)
    if source is None:
        raise ModelError(
            f"no rank's host has the draft model {Path(options.draft.directory).name} ({'; '.join(looked)}); put it "
            "where one of them looks for it, or set FERRULE_MODEL_PATH there to the directory that holds it"
        )
    color = 0 if world.rank in (driver, source) else None
    pair = world.split(color=color, key=int(world.rank == source))
    if pair is None:
        return None
    obtained = obtain(pair, asked, on_progress)
    return None if world.rank != driver else replace(options.draft, directory=str(obtained.directory))


def open_draft(
    world: Group,
    options: RankOptions,
    draft: Draft | None,
    kept: Runner | None,
    on_progress: Callable[[Progress], None],
    watched: Callable[[], AbstractContextManager[None]],
    model: Runner,
) -> Runner | None:
    """What computes ``draft``, of `obtain_draft`, on this rank of ``world`` by itself; None without one. ``kept``: of
    this rank, which met others before, and ``watched``: as for `rejoin`. ``model``: for which it guesses; its own layer
    takes what it has whole of embedding and output matrix. Raises what `make_runner` does."""
    if draft is None:
        return None
    alone = fabric.init(settings=FabricSettings())
    asked = replace(_options(options, draft), device=device_of(options.device, world.rank, world.size))
    if kept is None:
        there = model.whole_ends if draft.mtp and isinstance(model, StepRunner) else {}
        return make_runner(asked, alone, on_progress, there)
    rejoin(kept, asked, alone, watched)
    return kept


def drafts_of(runner: Runner, tried: DraftTrial, vocabulary: int, trial: Trial, model: Runner) -> DraftModel | MtpDraft:
    """``runner``, of `open_draft`, with as much room as the ``model`` has for which it guesses, by its ``trial`` and of
    this ``vocabulary``."""
    config = read_config(Path(runner.options.directory))
    border = short_context(config)  # beyond which all keys would have other frequencies
    longest = min(runner.options.context, border or runner.options.context)
    runner.reserve(trial.cache_tokens, trial.sequences, runner.captured_room())
    most, seconds = runner.options.batch_tokens, Line(tried.seconds)
    if runner.options.mtp:
        return MtpDraft(runner, model, longest, trial.cache_tokens, most, seconds)
    known = min(vocabulary, int(config.vocab_size))
    return DraftModel(runner, known, longest, trial.cache_tokens, most, seconds)


def _options(options: RankOptions, draft: Draft) -> RankOptions:
    """Of one rank that runs ``draft`` whole: another model as it is stored, and a layer of the same as its others."""
    return replace(
        options,
        directory=draft.directory,
        identity=draft.identity,
        plan=draft.plan,
        context=min(options.context, draft.context),
        draft=None,
        speculate=0,
        adapters=(),
        weights=options.weights if draft.mtp else None,
        mtp=draft.mtp,
        kv_cache="auto",
        stream_weights=None,
    )
