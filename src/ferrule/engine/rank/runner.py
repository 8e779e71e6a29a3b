"""The protocol of a runner, which computes batches on one rank, and the choice of one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from ferrule.engine.architectures import encodes
from ferrule.engine.device_names import CPU, device_of, parse_device
from ferrule.engine.devices import Device, open_device
from ferrule.engine.devices.peers.join import tensor_group
from ferrule.engine.devices.peers.peer_group import PeerGroup
from ferrule.engine.options import AS_NEEDED, RankOptions, check_blocks
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.cache.shared import SharedBlocks
from ferrule.engine.rank.encoder.runner import EncoderRunner
from ferrule.engine.rank.step.describe import Unfit
from ferrule.engine.rank.step.runner import StepRunner
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.source import read_config
from ferrule.engine.types import Progress, StreamUse
from ferrule.engine.weights.matrix import PackedMatrix
from ferrule.errors import EngineError, PlanError
from ferrule.fabric import Group
from ferrule.plan import Plan, Shard

log = logging.getLogger(__name__)


class Runner(Protocol):
    """One rank's stage of the model, and the caches of its sequences. Every rank runs the same batches.

    ``world`` is all ranks. ``dtype``: what it computes in, by torch's name. ``device_title``: its ``device`` and by
    what it computes there, for people. ``weight_bytes``: that it holds.
    """

    world: Group
    options: RankOptions
    plan: Plan
    shard: Shard
    dtype: str
    device: Device
    device_title: str
    weight_bytes: int

    @property
    def shared(self) -> SharedBlocks | None:
        """Blocks of the prefix cache; None before `unshared`, and where there can be none."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether `rejoin` can be called."""
        ...

    def rejoin(self, world: Group, stage: Group) -> None:
        """Go on, with what was loaded, in groups that take the place of those it had, which are closed. Sequences,
        blocks and captured steps are forgotten."""
        ...

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> Tensor | None:
        """Compute ``batch``, after dropping the caches that it releases. ``features``: on the driver, those of the
        images that begin in it. On the driver: logits (rows wanted, vocabulary) in float32, on the device, which may
        not have computed them yet; of `Kind.EMBED` the hidden states of all tokens after the last norm, (tokens,
        width). On all other ranks None. They hold until the next batch."""
        ...

    def hidden_states(self, rows: Sequence[int]) -> Tensor:
        """What the last norm gives of tokens ``rows`` (not none) of the batch that ran last: (rows, width), on the
        device. Only on the driver, and of options that have ``gives_hidden``."""
        ...

    def follow(self, hidden: Tensor | None) -> None:
        """Of a layer for multi-token prediction: the tokens of the next batch follow these hidden states of the model,
        (tokens, width), on the device; None: any."""
        ...

    def run_ahead(self, batch: Batch, tokens: Tensor) -> Tensor | None:
        """As `run`, with ``tokens`` (sequences,) on the device in the place of those of ``batch``. None where it cannot
        do so, and has done nothing."""
        ...

    def capture(self, batch: Batch, depth: int, rows: Sequence[int]) -> Tensor:
        """Compute the first ``depth`` layers of ``batch``, and return what they make of its tokens ``rows``: (rows,
        width) in host memory. Only ranks of the first stage call it, all of them."""
        ...

    def cache_bytes_per_token(self, sequence: int) -> int:
        """Bytes that one more token of ``sequence`` takes on this rank. Raises `ModelError` where the batches so far
        did not keep every layer's keys: the model computes attention in its own way."""
        ...

    def state_bytes(self, sequence: int) -> int:
        """Bytes that ``sequence`` takes on this rank however long it is: what recurrent layers keep of it."""
        ...

    def unshared(self, sequence: int) -> str | None:
        """Why sequences that begin alike cannot share what was computed of that, such as ``layers with a recurrent
        state``; None where they can. ``sequence``: one that has run."""
        ...

    @property
    def copies_blocks(self) -> bool:
        """Whether `shared` has copies, beside what sequences have. To be called after `reserve`."""
        ...

    @property
    def streams(self) -> str | None:
        """Which weights steps read from disk, for people; None: none."""
        ...

    def streamed(self) -> StreamUse | None:
        """What was read of them; None where all weights are in memory."""
        ...

    def cache_memory(self) -> int:
        """Bytes free for caches and all else on this rank's device, without what captured steps may take."""
        ...

    def captured_room(self) -> int:
        """Rows times tokens that each looks back on, of the largest step that this rank captures; 0 where it captures
        none. To be called after `cache_bytes_per_token` and `cache_memory`."""
        ...

    def reserve(self, tokens: int, sequences: int, captured_room: int) -> None:
        """Make caches for so many tokens of so many sequences at once, where steps are captured. ``captured_room``: the
        least of all ranks'. No sequence must be under way."""
        ...


def make_runner(
    options: RankOptions,
    world: Group,
    on_progress: Callable[[Progress], None],
    there: Mapping[str, PackedMatrix] = MappingProxyType({}),
) -> Runner:
    """Load this rank's part of the model; ``there``: as of `StepRunner`. Raises `ModelError`, `PlanError` or
    `ConfigError` where it cannot be run."""
    return choose_runner(options, world, _stage_of(options, world), on_progress, there)


def rejoin(
    runner: Runner, options: RankOptions, world: Group, watched: Callable[[], AbstractContextManager[None]]
) -> None:
    """In the place of `make_runner` on a rank that has met the others before: its ``runner`` goes on in ``world``.
    ``watched``: around what waits for no other rank.

    Raises `EngineError` where the devices of a host can exchange by themselves now, which they could not before.
    """
    stage = _stage_of(options, world)
    names = _devices_of(options, world)
    if not _in_host_memory(names):
        parts = tensor_group(world, stage, runner.device, alike=_alike(names))
        if isinstance(parts, PeerGroup):
            raise EngineError("devices of this host can exchange by themselves now: the model has to be loaded anew")
    runner.options = options
    if parse_device(names[world.rank])[0] == CPU:
        open_device(names[world.rank], options.threads)  # which may be others than before
    with watched():
        runner.rejoin(world, stage)


def _stage_of(options: RankOptions, world: Group) -> Group:
    """The ranks of this rank's stage; all ranks call it."""
    shard = options.plan.shards[world.rank]
    stage = world.split(color=shard.stage, key=shard.place)
    assert stage is not None  # only a rank without a colour gets none
    return stage


def _devices_of(options: RankOptions, world: Group) -> list[str]:
    return [device_of(options.device, rank, world.size) for rank in range(world.size)]


def _in_host_memory(devices: Sequence[str]) -> bool:
    return all(parse_device(name)[0] == CPU for name in devices)


def _alike(devices: Sequence[str]) -> bool:
    """Whether all have memory of their own."""
    return not any(parse_device(name)[0] == CPU for name in devices)


def choose_runner(
    options: RankOptions,
    world: Group,
    stage: Group,
    on_progress: Callable[[Progress], None],
    there: Mapping[str, PackedMatrix] = MappingProxyType({}),
) -> Runner:
    """The runner that suits the model and the devices of all ranks. ``stage``: the ranks of this rank's stage.
    ``there``: as of `StepRunner`."""
    names = _devices_of(options, world)
    check_blocks(options.plan.context, options.prefix_disk)
    device = open_device(names[world.rank], options.threads)
    if encodes(read_config(Path(options.directory))):
        _refuse_streaming(options, "encoders are run by transformers' modules")
        _refuse_hand_over(options)
        _refuse_context(options, "encoders keep none")
        return EncoderRunner(options, world, device, on_progress)
    if _in_host_memory(names):  # the native library computes there
        try:
            return StepRunner(options, world, stage, device, on_progress, there)
        except Unfit as unfit:
            log.info("the step runs through transformers' modules: %s", unfit)
            why = f"its step runs through transformers' modules ({unfit})"
    else:
        why = "a rank has a device of its own"
    _refuse_context(options, why)
    _refuse_streaming(options, why)
    if any(shard.exchange for shard in options.plan.shards):
        log.warning("tokens are sent to their experts by native step programs only: %s; all go to every rank", why)
    alike = _alike(names)
    parts = None if _in_host_memory(names) else tensor_group(world, stage, device, alike=alike)
    return TorchRunner(options, world, stage, device, on_progress, alike=alike, parts=parts)


def _refuse_context(options: RankOptions, why: str) -> None:
    """Raises `PlanError` where ranks are to share out keys and values by pages."""
    if options.plan.context > 1:
        raise PlanError(
            f"--cp {options.plan.context}: keys and values are shared out by native step programs only, on processors: "
            f"{why}"
        )


def _refuse_streaming(options: RankOptions, why: str) -> None:
    """Raises `PlanError` where the user wants weights read from disk."""
    if options.stream_weights is None:
        return
    told = f"weights are read from disk by native step programs only, on processors: {why}"
    if options.stream_weights == AS_NEEDED:
        log.warning("--stream-weights auto: %s", told)
    else:
        raise PlanError(f"--stream-weights: {told}")


def _refuse_hand_over(options: RankOptions) -> None:
    """Raises `PlanError` where prompts are computed by other ranks than answers."""
    if options.hands_over:
        raise PlanError("--prefill-tp: an encoder makes no answers, to whose ranks prompts could be handed over")
