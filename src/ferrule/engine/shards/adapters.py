"""Get the files of adapters: this host's own, those kept of an earlier start, or those of a host that has them."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from ferrule.config import environment, model_settings
from ferrule.engine.adapters import CONFIG, WEIGHTS, identity_of
from ferrule.engine.options import LOAD_TIMEOUT, Adapter
from ferrule.engine.shards.messages import receive_bytes, send_bytes, tell_all
from ferrule.errors import EngineError, ModelError
from ferrule.fabric import Group
from ferrule.files import cache_directory

MOST_BYTES = 2 << 30
"""Of an adapter that is sent: it is in memory meanwhile."""


def obtain_adapters(world: Group, adapters: Sequence[Adapter]) -> tuple[Adapter, ...]:
    """``adapters`` with directories of this host. All ranks call it. Raises `ModelError` where no host has one's files,
    `EngineError` where they cannot be sent or kept, and the fabric's errors."""
    return tuple(_obtain(world, each) for each in adapters)


def _obtain(world: Group, adapter: Adapter) -> Adapter:
    settings, given = model_settings(environment()), Path(adapter.path)
    kept = (settings.cache or cache_directory()) / "adapters" / adapter.identity
    places = [Path(each).expanduser() / given.name for each in settings.path] or [given]
    here = next((each for each in (*places, kept) if _is(each, adapter)), None)
    told = tell_all(world, [socket.gethostname(), "" if here is None else str(here)], LOAD_TIMEOUT)
    source = next((rank for rank, (_, directory) in enumerate(told) if directory), None)
    if source is None:
        hosts = ", ".join(sorted({host for host, _ in told}))
        raise ModelError(
            f"adapter {adapter.name!r}: none of the ranks' hosts ({hosts}) has {adapter.path} as it was when the model "
            "was ordered; put its directory there, or order the model again"
        )
    for rank in [rank for rank, (_, directory) in enumerate(told) if not directory]:
        if world.rank == source and here is not None:
            send_bytes(world, _pack(here, adapter.name), rank, LOAD_TIMEOUT)
        elif world.rank == rank:
            _keep(receive_bytes(world, source, LOAD_TIMEOUT), kept)
    return replace(adapter, path=str(here or kept))


def _is(directory: Path, adapter: Adapter) -> bool:
    try:
        return identity_of(directory) == adapter.identity
    except ModelError:
        return False


def _pack(directory: Path, name: str) -> bytes:
    size = (directory / WEIGHTS).stat().st_size
    if size > MOST_BYTES:
        raise EngineError(
            f"adapter {name!r} has {size:,} bytes, more than the {MOST_BYTES:,} that are sent to other hosts; copy "
            f"{directory} to the same path there"
        )
    return msgspec.msgpack.encode([(directory / file).read_bytes() for file in (CONFIG, WEIGHTS)])


def _keep(packed: bytes, directory: Path) -> None:
    """As a whole or not at all: other ranks of this host may do the same."""
    config, weights = msgspec.msgpack.decode(packed, type=tuple[bytes, bytes])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in ((WEIGHTS, weights), (CONFIG, config)):
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(data)
            Path(file.name).replace(directory / name)
    except OSError as error:
        raise EngineError(f"{directory} cannot keep an adapter that another host sent: {error}") from None
