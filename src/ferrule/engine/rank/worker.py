"""A rank: ``python -m ferrule.process.lifeline ferrule.engine.rank.worker_process [OPTIONS_JSON] CONTROL_FD``.

Without options it waits for them.

Every rank loads its part and then runs the batches that one of them, the driver, announces. The driver also talks to
the process that started the ranks: it takes requests, schedules, samples and sends tokens back.
"""

from __future__ import annotations

import gc
import os
import socket
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import transformers

from ferrule import fabric
from ferrule.config import FabricSettings, environment, fabric_settings, pins_threads
from ferrule.engine.architectures import short_context
from ferrule.engine.device_names import device_of
from ferrule.engine.devices import device_kind, name_here
from ferrule.engine.messages import Failed, Meet, Ready
from ferrule.engine.options import KEPT_SECONDS, LOAD_TIMEOUT, STEP_TIMEOUT, RankOptions
from ferrule.engine.rank.batch import Kind, receive
from ferrule.engine.rank.cache.shared import open_index, read_blocks
from ferrule.engine.rank.control import Control
from ferrule.engine.rank.device_use import DeviceUse, devices_of_all
from ferrule.engine.rank.draft.load import drafts_of, obtain_draft, open_draft
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.driver.moving import learn
from ferrule.engine.rank.encoder.runner import EncoderRunner
from ferrule.engine.rank.encoder.trial import try_encoder
from ferrule.engine.rank.handover.end import HandOverEnd, obeyed
from ferrule.engine.rank.handover.held_caches import HeldCaches
from ferrule.engine.rank.handover.keeper import Keeper, hand_on, why_not
from ferrule.engine.rank.runner import Runner, make_runner, rejoin
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.rank.vision.incoming import Incoming
from ferrule.engine.rank.vision.sights import seeing_of
from ferrule.engine.rank.warm_up import try_draft, warm_up
from ferrule.engine.selftest.check import check, expected
from ferrule.engine.shards.adapters import obtain_adapters
from ferrule.engine.shards.obtain import obtain
from ferrule.engine.source import read_config
from ferrule.engine.types import Progress, RankInfo
from ferrule.errors import EngineError, FabricError, FerruleError, PeerLost
from ferrule.process import pin_to_free_cores
from ferrule.process.lifeline import STANDBY_NAME, Lifeline, name_process
from ferrule.process.memory import private_bytes, trim
from ferrule.secure import derived_key

REJOIN_SECONDS = 30.0
"""In which a rank that is left must have forgotten sequences and taken up its new connections: longer ones hang."""
RANK_NAME = "ferrule rank"
"""Of the process."""


def main(arguments: list[str], line: Lifeline) -> int:
    control, use = Control(line), DeviceUse()
    try:
        name_process(STANDBY_NAME)
        options = RankOptions.from_json(arguments[0]) if arguments else control.options()
        name_process(RANK_NAME)
        serve(options, control, use, control.meet())
    except FerruleError as error:  # of the fabric's, `serve` may have said more before; the first report counts
        control.send(Failed(type(error).__name__, str(error), device=use.lost_by(error)))
        return error.exit_code
    except Exception as error:
        control.send(Failed("EngineError", f"{type(error).__name__}: {error}", device=use.lost_by(error)))
        raise
    return 0


@dataclass
class Part:
    """What a rank has loaded, once all were ready; it outlives the group of the ranks. ``draft``: what runs the draft
    model, if it is the driver's. ``info``: as it told it then. ``held``: of caches, for ranks that go on; ``leaves``:
    it is to drop all else for these."""

    runner: Runner | None = None
    draft: Runner | None = None
    info: RankInfo | None = None
    held: HeldCaches | None = None
    leaves: bool = False

    @property
    def stays(self) -> bool:
        return self.runner is not None and self.runner.keeps


def serve(options: RankOptions, control: Control, use: DeviceUse, meet: Meet) -> None:
    """Load, report, and run until the process is ended: by its parent's signal, or by the loss of a peer before all
    were ready. After that the rank keeps what it has loaded, and meets those that are left and those that are new.
    Where the model moves elsewhere it drops that, and hands on what its caches had."""
    transformers.logging.set_verbosity_error()
    settings, part = fabric_settings(environment(), strict=True), Part()
    while True:
        meeting = at_meeting(settings, meet.number)
        with fabric.init(settings=meeting, timeout=STEP_TIMEOUT, meet_timeout=options.meet_seconds) as world:
            try:
                serve_in(world, meeting, options, control, use, part, meet.secret)
            except FabricError as error:
                happened = error.happened if isinstance(error, PeerLost) else str(error)
                control.send(Failed(type(error).__name__, happened, lost_rank(world), keeps=part.stays))
                if not part.stays:
                    raise
                world.abort(happened)
        fabric.close_all()
        if part.leaves:
            part.runner = part.draft = None
        gc.collect()  # what is left of the session: groups in cycles hold descriptors
        if part.leaves and part.held is not None:
            trim()
            hand_on(part.held, control, settings, meet.secret)
            return
        meet = control.meet_anew(KEPT_SECONDS)
        options = meet.options or options


def at_meeting(settings: FabricSettings, number: int) -> FabricSettings:
    """``settings`` for the ranks' meeting of this ``number``: see `Meet`. The listening socket stays for those to come,
    and so does what waits at it meanwhile."""
    listen_fd = None if settings.listen_fd is None else os.dup(settings.listen_fd)
    key = bytes.fromhex(derived_key(settings.key, f"meeting {number}")) if number else settings.key
    return replace(settings, listen_fd=listen_fd, key=key)


def lost_rank(world: fabric.Group) -> int | None:
    """The rank that ``world`` has lost, if that is why it ended; a stage's group numbers its ranks otherwise."""
    try:
        world.check()
    except PeerLost as error:
        return error.rank
    except FabricError:
        return None
    return None


def serve_in(
    world: fabric.Group,
    settings: FabricSettings,
    options: RankOptions,
    control: Control,
    use: DeviceUse,
    part: Part,
    secret: str,
) -> None:
    """``settings``: by which it met the others. ``part``: of this rank, if it has it already. ``secret``: of `Meet`."""
    base = peak = private_bytes()
    if part.info is not None:
        base, peak = part.info.base_bytes, part.info.peak_bytes
    control.progress(Progress(world.rank, "start"))

    def on_progress(progress: Progress) -> None:
        nonlocal peak
        peak = max(peak, private_bytes())
        control.progress(progress)

    held, use.name = use.name, name_here(device_of(options.device, world.rank, world.size))
    options = replace(options, device=devices_of_all(world, options.device))
    use.name = device_of(options.device, world.rank, world.size)
    if part.runner is not None and use.name != held:
        raise EngineError(f"what it has loaded is on {held}, not on {use.name}, so it cannot go on with that")
    use.attempt(options.threads)
    if part.runner is None and device_kind(use.name).pinned and pins_threads(environment()):
        pin_to_free_cores(options.threads)
    obtained = obtain(world, options, on_progress)
    options = replace(options, adapters=obtain_adapters(world, options.adapters))
    config = read_config(obtained.directory)
    vocabulary = config.vocab_size
    drafts = obtain_draft(world, options, on_progress)
    reference = expected(world, options, obtained, vocabulary, on_progress)
    options = replace(options, directory=str(obtained.directory))
    late = Failed("EngineError", f"it did not go on within {REJOIN_SECONDS:g} s with what it had loaded")
    watched = partial(control.within, REJOIN_SECONDS, late)
    if part.runner is None:
        runner = make_runner(options, world, on_progress)
    else:
        runner = part.runner
        rejoin(runner, options, world, watched)
        world = runner.world
    draft = open_draft(world, options, drafts, part.draft, on_progress, watched, runner)
    control.progress(Progress(world.rank, "warm up"))
    world.barrier(timeout=LOAD_TIMEOUT)
    tried = None if draft is None else try_draft(draft)
    trial = try_encoder(runner, vocabulary) if isinstance(runner, EncoderRunner) else warm_up(runner, tried)
    if reference is not None:
        check(runner, reference, vocabulary, trial.cache_tokens, on_progress)
    peak = max(peak, private_bytes())
    info = RankInfo(
        rank=world.rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=runner.device_title,
        weight_bytes=runner.weight_bytes + (0 if draft is None else draft.weight_bytes),
        base_bytes=base,
        peak_bytes=peak,
        transports=transports(world),
        received_bytes=obtained.received,
        unshared=trial.unshared if options.prefix_cache else None,
        unguessed=trial.unshared if options.speculate else None,
        streamed=runner.streams,
    )
    shared = runner.shared if trial.unshared is None else None
    prefixes = open_index(world, options, shared, f"{runner.device_title} {runner.dtype}", copies=trial.copies)
    keeper = Keeper(runner, settings, trial, control.send, secret, why_not(runner, options, trial))
    moved, part.held = None if keeper.refusal else keeper.taken_again(part.held), None
    if moved is not None and world.rank == options.plan.driver:
        control.send(learn(prefixes, moved))
    use.starting, part.runner, part.draft, part.info = False, runner, draft, info
    with hand_over_end(runner, settings, control, secret) as end, closing(keeper):
        control.send(Ready(info, trial.cache_tokens))
        try:
            if world.rank == options.plan.driver:
                incoming, short = Incoming(seeing_of(obtained.directory)), short_context(config)
                guesses = None
                if draft is not None and tried is not None:
                    guesses = drafts_of(draft, tried, vocabulary, trial, runner)
                driver = Driver(
                    options, runner, control, trial, vocabulary, short, prefixes, incoming, guesses, end, keeper
                )
                driver.loop()
            else:
                follow(runner, end, keeper)
        finally:
            part.held, part.leaves = keeper.held, keeper.leaves


def hand_over_end(
    runner: Runner, settings: FabricSettings, control: Control, secret: str
) -> AbstractContextManager[HandOverEnd | None]:
    """That of this rank, where prompts are handed over."""
    if not runner.options.hands_over:
        return nullcontext()
    assert isinstance(runner, StepRunner | TorchRunner)  # `make_runner` refuses others
    return HandOverEnd(runner, settings, control.send, secret)


def transports(world: fabric.Group) -> str:
    """The transports to this rank's peers, such as ``shm`` or ``shm+tcp``."""
    return world.describe().transports if world.size > 1 else "none"


def follow(runner: Runner, end: HandOverEnd | None = None, keeper: Keeper | None = None) -> None:
    """Run what the driver announces, until the model moves elsewhere."""
    while keeper is None or not keeper.leaves:
        batch = receive(runner.world, runner.plan.driver, STEP_TIMEOUT)
        obeyed(end, batch)
        runner.run(batch)
        if end is not None and batch.kind is Kind.RECEIVE:
            end.count(batch)
        if batch.kind is Kind.READ:
            read_blocks(runner.shared, batch, runner.world)
        if keeper is not None:
            keeper.obey(batch)
