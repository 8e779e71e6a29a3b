"""Joining of the devices of one host, to exchange by themselves: decided and tried by all ranks of a stage."""

from __future__ import annotations

import logging
import tempfile
import threading
from functools import partial
from pathlib import Path

import torch

from ferrule.config import device_peers, environment, host_id
from ferrule.engine.devices.device import Device, RankGroup
from ferrule.engine.devices.peers.choice import Offer, objections, units
from ferrule.engine.devices.peers.device_group import DeviceGroup
from ferrule.engine.devices.peers.peer_group import PeerGroup, watch
from ferrule.engine.devices.staged import StagedDevice
from ferrule.engine.shards.messages import tell_all
from ferrule.errors import EngineError
from ferrule.fabric import Group
from ferrule.process import boot_id

log = logging.getLogger(__name__)
JOIN_SECONDS = 60.0
"""In which the devices of a host must have done a first sum."""
_TELL_SECONDS = 2 * JOIN_SECONDS
_TRIED = 1000
"""Elements of the first sum."""


def tensor_group(world: Group, stage: Group, device: Device, *, alike: bool) -> RankGroup:
    """The group that puts together tensors of ``stage``, whose ranks all call this. ``world``: all ranks, by which a
    loss is noticed; ``alike``: the devices of all have memory of their own.

    Raises `EngineError` where ``FERRULE_DEVICE_PEERS=always`` and devices of one host cannot exchange by themselves.
    """
    staged = device.group(stage, alike=alike)
    if stage.size == 1:
        return staged
    environ = environment()
    backend = device.peer_backend if isinstance(device, StagedDevice) else ""
    mine = Offer(f"{boot_id()} {host_id(environ)}", backend, str(device.torch_device), device_peers(environ))
    offers = tell_all(stage, mine, _TELL_SECONDS)
    chosen, reasons = units(offers), objections(offers)
    with_peers = [unit for unit in chosen if len(unit) > 1]
    unit = next(unit for unit in chosen if stage.rank in unit)
    peers: DeviceGroup | None = None
    joining = _Joining(stage, unit) if with_peers else None
    if joining is not None:
        if len(unit) > 1 and isinstance(device, StagedDevice):
            peers = joining.attempt(device)
        failures = tell_all(stage, joining.failure, _TELL_SECONDS)
        failed = [each for each in with_peers if any(failures[rank] for rank in each)]
        reasons += [next(failures[rank] for rank in each if failures[rank]) for each in failed]
        chosen = sorted([each for each in chosen if each not in failed] + [(r,) for each in failed for r in each])
        if unit in failed and peers is not None:
            peers.abort()
            peers = None
    if reasons and any(offer.wish == "always" for offer in offers):
        raise EngineError(f"FERRULE_DEVICE_PEERS=always, but devices of one host cannot: {'; '.join(reasons)}")
    for reason in reasons:
        level = logging.INFO if reason in objections(offers) else logging.WARNING
        log.log(level, "devices of a host exchange through its memory: %s", reason)
    if all(len(each) == 1 for each in chosen):
        return staged
    between, ends = None, [] if peers is None else [peers.abort]
    if len(chosen) > 1:
        between = stage.split(color=0 if any(each[0] == stage.rank for each in chosen) else None)
    if between is not None:
        ends.append(partial(between.abort, "a rank of another host was lost"))
    leaders = None if between is None else device.group(between, alike=alike)
    watch(world, ends)
    log.info("devices of a stage's ranks exchange by themselves within %s", chosen)
    return PeerGroup(staged, peers, leaders, world, whole=len(chosen) == 1, held=joining)


class _Joining:
    """``unit``: the ranks of ``stage`` on this host. ``failure``: why this one could not join them, if so. The leader's
    directory lasts as long as this."""

    def __init__(self, stage: Group, unit: tuple[int, ...]) -> None:
        self.failure = ""
        self._place, self._size = unit.index(stage.rank), len(unit)
        self._made: DeviceGroup | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        mine = ""
        if self._place == 0 and self._size > 1:
            self._directory = tempfile.TemporaryDirectory(prefix="ferrule-")  # this user's alone
            mine = self._directory.name
        self._path = Path(tell_all(stage, mine, _TELL_SECONDS)[unit[0]])

    def attempt(self, device: StagedDevice) -> DeviceGroup | None:
        """In a thread, since what libraries of vendors wait for has no deadline."""
        trial = threading.Thread(target=self._try, args=(device,), name="ferrule peers", daemon=True)
        trial.start()
        trial.join(JOIN_SECONDS)
        if trial.is_alive():
            self.failure = f"{device.title}: nothing came of it in {JOIN_SECONDS:g} s"
        return self._made

    def _try(self, device: StagedDevice) -> None:
        try:
            self._made = device.peers(self._path, self._place, self._size)
            x = device.empty((_TRIED,), torch.float32).fill_(self._place + 1)
            self._made.all_reduce(x)
            if not bool((device.download(x) == self._size * (self._size + 1) / 2).all()):
                self.failure = f"{device.title}: the first sum is wrong"
        except Exception as error:  # noqa: BLE001 (of whatever library; the fabric takes its place)
            self.failure = f"{device.title}: {type(error).__name__}: {error}"
