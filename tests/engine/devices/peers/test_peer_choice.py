"""Ranks that exchange device tensors by themselves: those of one host, if all of them can."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from thread_group import Shared, ThreadGroup, run_ranks

from ferrule.config import device_peers
from ferrule.engine.devices.emulated.machine import LostDevice
from ferrule.engine.devices.peers.choice import Offer, objections, units
from ferrule.engine.devices.peers.device_group import TorchPeers, torch_backend
from ferrule.engine.devices.peers.peer_group import PeerGroup
from ferrule.errors import ConfigError, FabricError


def offer(host: str, device: str, backend: str = "nccl", wish: str = "auto") -> Offer:
    return Offer(host, backend, device, wish)


def test_ranks_of_a_host_are_together_if_all_of_them_can() -> None:
    a, b = [offer("a", f"cuda:{n}") for n in range(2)], [offer("b", f"cuda:{n}") for n in range(2)]
    assert units([*a, *b]) == [(0, 1), (2, 3)]
    assert units([a[0], b[0], a[1]]) == [(0, 2), (1,)]
    assert objections([a[0], b[0], a[1]]) == []
    for other, reason in (
        (offer("b", "cuda:1", wish="never"), "FERRULE_DEVICE_PEERS=never"),
        (offer("b", "cpu", backend=""), "torch has no backend for all of them"),
        (offer("b", "xpu:0", backend="xccl"), "different backends"),
        (offer("b", "cuda:0"), "ranks share a device"),
    ):
        assert units([*a, b[0], other]) == [(0, 1), (2,), (3,)]
        (found,) = objections([*a, b[0], other])
        assert found.startswith(f"cuda:0, {other.device}: ")
        assert reason in found


def test_the_setting_is_one_of_three() -> None:
    assert device_peers({}) == "auto"
    assert device_peers({"FERRULE_DEVICE_PEERS": "never"}) == "never"
    with pytest.raises(ConfigError, match="FERRULE_DEVICE_PEERS='yes' is none of auto, always, never"):
        device_peers({"FERRULE_DEVICE_PEERS": "yes"})
    assert torch_backend("mps") == torch_backend("xpu") == ""


def test_torchs_backends_are_called_as_they_want(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By gloo, whose backend object has the methods of NCCL's."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def gloo(store: Any, rank: int, size: int) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=30))

    def body(stage: ThreadGroup) -> list[list[float]]:
        peers = TorchPeers(tmp_path, stage.rank, 2, gloo)
        x, out = torch.tensor([1.0 + stage.rank]), torch.zeros(2)
        peers.all_gather(x, out)
        summed = x.clone()
        peers.all_reduce(summed)
        peers.broadcast(x, 1)
        return [out.tolist(), summed.tolist(), x.tolist()]

    assert run_ranks(2, body) == [[[1, 2], [3], [2]]] * 2


@dataclass
class ThreadPeers:
    ranks: ThreadGroup

    def all_reduce(self, x: torch.Tensor) -> None:
        self.ranks.all_reduce(x)

    def broadcast(self, x: torch.Tensor, root: int) -> None:
        x.copy_(self.ranks._exchange(x.clone())[root])

    def all_gather(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.ranks.all_gather(x, out)

    def abort(self) -> None:
        raise RuntimeError("not here")


class World:
    def check(self) -> None:
        return


def test_sums_are_made_within_hosts_then_between_them() -> None:
    """Of hosts of two ranks and of one, whose numbers are mixed; and of one host alone."""
    here, both, alone = Shared(2), Shared(2), Shared(3)

    def rank(stage: ThreadGroup) -> list[list[float]]:
        peers = None if stage.rank == 1 else ThreadPeers(ThreadGroup(stage.rank // 2, here))
        leaders: Any = None if stage.rank == 2 else ThreadGroup(stage.rank, both)
        group = PeerGroup(stage, peers, leaders, World(), whole=False)
        x = torch.tensor([1.0 + stage.rank])
        found = [group.all_reduce(x.clone()), group.all_gather(x), group.gather(x, 0)]
        one = PeerGroup(stage, ThreadPeers(ThreadGroup(stage.rank, alone)), None, World(), whole=True)
        found += [one.all_reduce(x.clone()), one.all_gather(x), one.gather(x, 0)]
        return [[] if each is None else each.tolist() for each in found]

    first, second, third = run_ranks(3, rank)
    assert first == [[6], [1, 2, 3], [1, 2, 3]] * 2
    assert second == third == [[6], [1, 2, 3], []] * 2


def test_a_failure_of_devices_without_a_lost_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ThreadPeers):
        def all_reduce(self, x: torch.Tensor) -> None:
            raise RuntimeError("unhandled system error")

    monkeypatch.setattr("ferrule.engine.devices.peers.peer_group._CAUSE", 0.0)
    ranks = ThreadGroup(0, Shared(1))
    group = PeerGroup(ranks, Broken(ranks), None, World(), whole=True)
    with pytest.raises(FabricError, match=r"rank 0: .* \(unhandled system error\); FERRULE_DEVICE_PEERS=never leaves"):
        group.all_reduce(torch.ones(1))

    def fallen(self: object, x: torch.Tensor) -> None:
        raise LostDevice("fell off the bus")

    monkeypatch.setattr(Broken, "all_reduce", fallen)
    with pytest.raises(LostDevice):
        group.all_reduce(torch.ones(1))
