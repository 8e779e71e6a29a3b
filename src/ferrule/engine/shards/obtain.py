"""Get this host's part of the model: from its own files, or from the hosts that have them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ferrule.config import ModelSettings, environment, host_id, model_settings
from ferrule.engine.options import LOAD_TIMEOUT, RankOptions
from ferrule.engine.shards.messages import receive_bytes, send_bytes, tell_all
from ferrule.engine.shards.pieces import Piece
from ferrule.engine.shards.store import Store
from ferrule.engine.shards.transfer import Receiver, Wire, transfer
from ferrule.engine.shards.weight_files import Layout, Reader, identity, read_layout
from ferrule.engine.types import Progress
from ferrule.errors import FerruleError, ModelError
from ferrule.fabric import Group
from ferrule.files import cache_directory

MESSAGE_TIMEOUT = 300.0
"""Seconds for configuration and headers to be sent."""

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Obtained:
    """``directory`` to load from. ``received``: bytes of the model that came from other ranks to this one at this
    start. ``sources``: the ranks whose hosts have the whole model."""

    directory: Path
    received: int
    sources: tuple[int, ...]


@dataclass(frozen=True)
class OwnFiles:
    directory: Path
    layout: Layout


@dataclass(frozen=True)
class HostFiles:
    """Message of each rank to the others about its files. ``files``: its host has the model's. ``token``: tells its
    store from others; empty where it has none. ``looked``: what was found where the files were looked for."""

    host: str
    files: bool
    token: str
    looked: tuple[str, ...]


def look(options: RankOptions, settings: ModelSettings) -> tuple[OwnFiles | None, list[str]]:
    """This host's own files of the model, and what was found where they were looked for instead."""
    given = Path(options.directory)
    looked = []
    for directory in [Path(each).expanduser() / given.name for each in settings.path] or [given]:
        if not directory.exists():
            looked.append(f"{directory} is not there")
            continue
        try:
            layout = read_layout(directory)
            if identity(directory, layout) == options.identity:
                return OwnFiles(directory, layout), looked
            looked.append(f"{directory} holds another model (its configuration or weights differ)")
        except ModelError as error:
            looked.append(str(error))
    return None, looked


def obtain(world: Group, options: RankOptions, on_progress: OnProgress) -> Obtained:
    """All ranks call it. Raises `ModelError` where no host has the model, `EngineError` where parts cannot be kept or
    arrive damaged, what cutting the model raises, and the fabric's errors."""
    if not options.identity:
        return Obtained(Path(options.directory), 0, tuple(range(world.size)))
    settings = model_settings(environment())
    own, looked = look(options, settings)
    root = settings.cache or cache_directory() / "shards"
    store = None if own else Store(root, options.identity)
    state = HostFiles(_host(), own is not None, store.token() if store else "", tuple(looked))
    told = tell_all(world, state, LOAD_TIMEOUT)
    sources = tuple(rank for rank, each in enumerate(told) if each.files)
    if len(sources) == world.size:
        assert own is not None
        return Obtained(own.directory, 0, sources)
    # The first rank of those that share a store fills it for all of them.
    served = [rank for rank, each in enumerate(told) if store and each.token == state.token]
    filled = store if store and served[0] == world.rank else None
    directory = own.directory if own else root / options.identity
    try:
        if filled:
            filled.open()
        received = _lay_out(world, own, filled, sources, told, options)
        missing: list[Piece] = []
        if filled:
            missing = _missing(filled, options, served, lambda d, t: on_progress(Progress(world.rank, "check", d, t)))
        received += _transfer(world, own, directory, filled, missing, sources, told, options, on_progress)
        if filled:
            filled.finish()
        world.barrier(timeout=LOAD_TIMEOUT)
    except BaseException:
        if filled:
            with suppress(FerruleError, OSError):
                filled.flush()  # so that the next start goes on from here
        raise
    finally:
        if filled:
            filled.close()
    return Obtained(directory, received, sources)


def _host() -> str:
    return host_id(os.environ) or socket.gethostname()


def _lay_out(
    world: Group,
    own: OwnFiles | None,
    store: Store | None,
    sources: Sequence[int],
    told: Sequence[HostFiles],
    options: RankOptions,
) -> int:
    """Send configuration and headers to the stores that lack them. Returns the bytes that came here."""
    lacks = tell_all(world, store is not None and not store.ready(), LOAD_TIMEOUT)
    if any(lacks) and not sources:
        raise ModelError(_nowhere(told, options))
    received = 0
    for rank in [rank for rank, lacking in enumerate(lacks) if lacking]:
        if own and world.rank == sources[0]:
            send_bytes(world, own.layout.pack(), rank, MESSAGE_TIMEOUT)
        elif store and world.rank == rank:
            packed = receive_bytes(world, sources[0], MESSAGE_TIMEOUT)
            store.lay_out(Layout.unpack(packed))
            received = len(packed)
    return received


def _missing(
    store: Store, options: RankOptions, ranks: Sequence[int], on_done: Callable[[int, int], None]
) -> list[Piece]:
    """Pieces that the store lacks of what ``ranks`` need."""
    from ferrule.engine.shards.needs import needs  # with torch, which is not needed where the files are

    store.check(on_done)
    shards = [options.plan.shards[rank] for rank in ranks]
    asked = store.path, options.dtype
    wanted = [piece for shard in shards for piece in needs(*asked, shard, options.weights, mtp=options.mtp)]
    missing = store.missing(wanted)
    store.check_room(missing)
    return missing


def _transfer(
    world: Group,
    own: OwnFiles | None,
    directory: Path,
    store: Store | None,
    missing: Sequence[Piece],
    sources: Sequence[int],
    told: Sequence[HostFiles],
    options: RankOptions,
    on_progress: OnProgress,
) -> int:
    """Fill the stores. Returns the bytes that came here."""
    totals = tell_all(world, len(missing), LOAD_TIMEOUT)
    if not any(totals):
        return 0
    if not sources:
        raise ModelError(_nowhere(told, options))
    wire = Wire((own.layout if own else read_layout(directory)).places())
    near = [rank for rank in sources if told[rank].host == told[world.rank].host]
    receiver = None
    if store:
        report = lambda done, total: on_progress(Progress(world.rank, "receive", done, total))  # noqa: E731
        receiver = Receiver(wire, missing, near or sources, store, report)
    wanted = sum(tell_all(world, receiver.total if receiver else 0, MESSAGE_TIMEOUT))
    if own:
        on_sent = lambda sent: on_progress(Progress(world.rank, "send", sent, wanted))  # noqa: E731
        with Reader(own.directory, wire.places) as reader:
            transfer(world, wire, receiver, reader, on_sent)
    else:
        transfer(world, wire, receiver, None, lambda sent: None)
    return receiver.received if receiver else 0


def _nowhere(told: Sequence[HostFiles], options: RankOptions) -> str:
    places = {f"on {each.host}: {', '.join(each.looked)}": None for each in told}
    return (
        f"no host has the files of {Path(options.directory).name} ({'; '.join(places)}); put the model where one of "
        "them looks for it, or set FERRULE_MODEL_PATH there to the directory that holds it"
    )
