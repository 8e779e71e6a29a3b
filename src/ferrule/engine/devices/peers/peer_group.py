"""Collectives of a stage's device tensors: within a host by the devices themselves, between hosts by the fabric."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
from torch import Tensor

from ferrule.engine.devices.device import RankGroup
from ferrule.engine.devices.peers.device_group import DeviceGroup
from ferrule.errors import FabricError, FerruleError

_LOOK = 0.05
"""Seconds between two looks of the watch at the group."""
_CAUSE = 5.0
"""Seconds after which a failure of the devices' own has no lost rank for its cause."""


class Watched(Protocol):
    """A group that says why it has failed, if it has."""

    def check(self) -> None: ...


def watch(world: Watched, ends: Sequence[Callable[[], object]]) -> None:
    """Call ``ends`` when ``world`` has failed: neither devices that exchange notice, nor hosts that wait for them."""

    def look() -> None:
        while True:
            try:
                world.check()
            except FerruleError:
                for end in ends:
                    with suppress(RuntimeError):
                        end()
                return
            time.sleep(_LOOK)

    threading.Thread(target=look, name="ferrule peers", daemon=True).start()


class PeerGroup:
    """`RankGroup` of the ranks of ``staged``, a group whose tensors go over the fabric.

    ``peers``: those of this rank's host, or None where it is alone there. ``whole``: they are all ranks of the group.
    ``leaders``: one rank of each host, by the fabric, if this is one; it is number 0 of its ``peers``. ``held``: what
    must last as long as this. Raises what ``world`` failed for.
    """

    def __init__(
        self,
        staged: RankGroup,
        peers: DeviceGroup | None,
        leaders: RankGroup | None,
        world: Watched,
        *,
        whole: bool,
        held: object = None,
    ) -> None:
        self._staged, self._peers, self._leaders, self._world, self._whole = staged, peers, leaders, world, whole
        self._held = held
        self.rank, self.size = staged.rank, staged.size

    def all_reduce(self, x: Tensor, /) -> Tensor:
        with self._cause():
            if self._peers is not None:
                self._peers.all_reduce(x)
            if self._leaders is not None:
                self._leaders.all_reduce(x)
            if self._peers is not None and not self._whole:
                self._peers.broadcast(x, 0)
        return x

    def all_gather(self, x: Tensor, out: Tensor | None = None, /) -> Tensor:
        if self._peers is None or not self._whole:
            return self._staged.all_gather(x, out)  # type: ignore[no-any-return]
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:])) if out is None else out
        with self._cause():
            self._peers.all_gather(x, out)
        return out

    def gather(self, x: Tensor, root: int, out: Tensor | None = None, /) -> Tensor | None:
        if self._peers is None or not self._whole:
            return self._staged.gather(x, root, out)  # type: ignore[no-any-return]
        joined = self.all_gather(x, out)
        return joined if self.rank == root else None

    def send(self, x: Tensor, dst: int, /) -> None:
        self._staged.send(x, dst)

    def recv(self, x: Tensor, src: int, /) -> Tensor:
        return self._staged.recv(x, src)  # type: ignore[no-any-return]

    @contextmanager
    def _cause(self) -> Iterator[None]:
        """A failure of the devices' own, or of the leaders' group, is mostly that of a rank, which ``world`` names
        soon."""
        try:
            yield
        except (torch.AcceleratorError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, FabricError) as error:
            end = time.monotonic() + _CAUSE
            while time.monotonic() < end:
                self._world.check()
                time.sleep(_LOOK)
            if isinstance(error, FabricError):
                raise
            raise FabricError(
                f"rank {self.rank}: the devices of this host could not exchange a tensor ({error}); "
                "FERRULE_DEVICE_PEERS=never leaves it to the fabric"
            ) from error
