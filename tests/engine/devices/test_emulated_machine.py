"""The emulated accelerator is harsher than hardware: what is left out is a wrong result or an error, never luck."""

from __future__ import annotations

import gc

import pytest
import torch
from plugged import plug_in

from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.emulated.machine import LostDevice, Machine
from ferrule.engine.devices.emulated.tensor import EmulatedTensor
from ferrule.engine.devices.staging import StagedGroup
from ferrule.staging import PIECE_BYTES


def device(seed: int | None = None, memory: int = 1 << 26, *, unified: bool = False) -> EmulatedDevice:
    EmulatedDevice()  # so that torch knows it
    plug_in(Machine(0, memory, seed, unified=unified))
    return EmulatedDevice()


def test_a_copy_that_nothing_waited_for_has_not_arrived() -> None:
    one = device()
    values = one.upload(torch.arange(4.0)) * 2
    host = one.pinned((4,), torch.float32).copy_(values, non_blocking=True)
    event = one.record()
    assert host.isnan().all()
    event.synchronize()
    assert host.tolist() == [0, 2, 4, 6]
    assert one.machine.waits == {}


def test_pinned_memory_that_is_written_too_early_spoils_the_copy() -> None:
    one = device()
    host = one.pinned((2,), torch.float32).copy_(torch.tensor([1.0, 2.0]))
    values = one.empty((2,), torch.float32).copy_(host, non_blocking=True)
    host.zero_()
    assert one.download(values).tolist() == [0, 0]


def test_other_host_memory_is_read_before_the_copy_returns_and_that_counts_as_a_wait() -> None:
    one = device()
    host = torch.tensor([1.0, 2.0])
    values = one.empty((2,), torch.float32).copy_(host, non_blocking=True)
    host.zero_()
    assert one.download(values).tolist() == [1, 2]
    assert sum(one.machine.waits.values()) == 1


@pytest.mark.parametrize("read", [torch.Tensor.item, bool, float, torch.Tensor.cpu])
def test_reading_a_number_waits_and_is_counted(read: object) -> None:
    one = device()
    assert callable(read)
    value = one.upload(torch.tensor([3.0])) + 1
    assert float(read(value[0])) in (1.0, 4.0)
    assert sum(one.machine.waits.values()) == 1
    assert one.machine.to_host == 1


def test_a_result_whose_size_depends_on_numbers_waits() -> None:
    one = device()
    found = one.upload(torch.tensor([0, 3, 0, 5])).nonzero()
    assert one.download(found).tolist() == [[1], [3]]
    assert len(one.machine.waits) == 1


def test_tensors_of_different_devices_do_not_mix() -> None:
    one = device()
    values = one.upload(torch.ones(2))
    with pytest.raises(RuntimeError, match="two devices, emulated:0 and cpu"):
        values + torch.ones(2)
    other = EmulatedDevice(1)
    with pytest.raises(RuntimeError, match="two devices, emulated:0 and emulated:1"):
        values + other.upload(torch.ones(2))


def test_fresh_memory_spoils_what_is_computed_from_it() -> None:
    one = device()
    assert one.download(one.empty((3,), torch.float32) * 0).isnan().all()


def test_streams_know_each_other_by_events_only() -> None:
    one = device()
    timeline = one.machine.timeline
    side = timeline.stream()
    values = one.upload(torch.ones(2)) + 1
    ready = one.record()
    for after in (False, True):
        timeline.current = side
        if after:
            side.after(ready)  # type: ignore[arg-type]
        host = one.pinned((2,), torch.float32).copy_(values, non_blocking=True)
        side.record().synchronize()
        timeline.current = timeline.default
        assert host.isnan().any() == (not after)
    assert host.tolist() == [2, 2]


def test_views_look_at_the_same_memory_and_are_not_copied() -> None:
    one = device()
    values = one.upload(torch.zeros(4, 4))
    before = one.machine.used
    part = values[1:3].T.reshape(4, 2)
    part[0].fill_(7.0)
    assert one.machine.used == before
    assert one.download(values)[1:3, 0].tolist() == [7, 7]
    other = values.T.reshape(-1)
    assert isinstance(other, EmulatedTensor)
    assert one.machine.used == 2 * before, "this could not be a view"


def test_memory_is_counted_and_runs_out() -> None:
    one = device(memory=1 << 20)
    values = one.empty((128, 1024), torch.float32)
    assert one.memory_free() == (1 << 20) - (1 << 19)
    with pytest.raises(torch.OutOfMemoryError, match="emulated:0 out of memory: 1048576 bytes were asked"):
        one.empty((256, 1024), torch.float32)
    del values
    gc.collect()
    assert one.memory_free() == 1 << 20


def test_a_lost_device_fails_at_every_use() -> None:
    one = device()
    values = one.upload(torch.ones(2))
    one.machine.lose("fell off the bus")
    for use in (lambda: values + 1, lambda: one.empty((1,), torch.int8), one.synchronize):
        with pytest.raises(LostDevice, match="emulated:0: fell off the bus"):
            use()


class Twice:
    """A group of two ranks that hold the same."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def all_reduce(self, x: torch.Tensor) -> None:
        self.sizes.append(x.numel())
        x += x.clone()

    def all_gather(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], out=out)

    def gather(self, x: torch.Tensor, root: int, out: torch.Tensor | None) -> torch.Tensor | None:
        return None if out is None else self.all_gather(x, out)

    def send(self, x: torch.Tensor, dst: int) -> None:
        self.sent = x.clone()

    def recv(self, x: torch.Tensor, src: int) -> torch.Tensor:
        return x.copy_(self.sent)


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("seed", [None, *range(4)])
@pytest.mark.parametrize("count", [1, 1000, PIECE_BYTES // 4, 3 * PIECE_BYTES // 4 + 5])
def test_collectives_of_device_tensors(count: int, seed: int | None, unified: bool) -> None:
    one, ranks = device(seed, unified=unified), Twice()
    group = StagedGroup(ranks, one, in_pieces=True)
    values = one.upload(torch.arange(count, dtype=torch.float32))
    for turn in range(3):
        waits = one.machine.timeline.waits
        group.all_reduce(values)
        pieces = 1 if unified else -(-count * 4 // PIECE_BYTES)
        assert one.machine.timeline.waits - waits == pieces, "one for each piece, or for all in place"
        values = values + 1
        expected = torch.arange(count, dtype=torch.float32) * 2 ** (turn + 1) + (2 ** (turn + 1) - 1)
    assert torch.equal(one.download(values), expected)
    assert (
        ranks.sizes == 3 * [PIECE_BYTES // 4] * (count * 4 // PIECE_BYTES) + 3 * [count % (PIECE_BYTES // 4)]
        or max(ranks.sizes) <= PIECE_BYTES // 4
    )
    assert torch.equal(one.download(group.all_gather(values)), torch.cat([expected, expected]))
    gathered = group.gather(values, 0)
    assert gathered is not None
    assert torch.equal(one.download(gathered), torch.cat([expected, expected]))
    assert group.gather(values, 1) is None
    group.send(values * 2, 1)
    assert torch.equal(one.download(group.recv(one.empty((count,), torch.float32), 1)), expected * 2)
    assert one.machine.waits == {}, "the host waited only for events"


def test_memory_that_the_host_sees_is_not_copied_and_waited_for_once() -> None:
    one, ranks = device(unified=True), Twice()
    group = StagedGroup(ranks, one, in_pieces=True)
    values = one.upload(torch.ones(8)) * 3
    out = one.empty((8,), torch.float32)
    copies, waits = (one.machine.to_host, one.machine.to_device), one.machine.timeline.waits
    calls = [
        lambda: group.all_reduce(values),
        lambda: group.all_gather(values),
        lambda: group.gather(values, 0),
        lambda: group.send(values, 1),
        lambda: group.recv(out, 1),
    ]
    results = [call() for call in calls]
    assert (one.machine.to_host, one.machine.to_device) == copies
    assert one.machine.timeline.waits - waits == len(calls)
    assert [one.download(each).unique().tolist() for each in (*results[:3], out)] == [[6]] * 4
    kept = one.download(values)
    values += 1
    assert kept.tolist() == [6] * 8, "a download is a copy"
    assert one.download(values).tolist() == [7] * 8


def test_memory_that_the_host_sees_too_early_is_old_or_spoilt() -> None:
    one = device(unified=True)
    fresh = one.empty((4,), torch.float32)
    seen = one.host_view(fresh)
    assert seen is not None
    seen.fill_(1.0)
    assert one.download(fresh).isnan().all(), "the device had still to write for whom had the memory before"
    fresh.fill_(2.0)
    assert seen.isnan().all()
    one.record().synchronize()
    assert seen.tolist() == [2.0] * 4
    twice = fresh * 2
    seen.fill_(5.0)
    assert one.download(twice).tolist() == [10.0] * 4, "it reads what is there when it computes"
    assert device().host_view(one.empty((4,), torch.float32)) is None


@pytest.mark.parametrize("unified", [False, True])
def test_no_collective_works_without_its_event(unified: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one event that each copy to the host waits for, or each use in place: without it what is sent is not what was
    computed, and what is received is overwritten."""

    class Never:
        def synchronize(self) -> None:
            return

    for use in ("all_reduce", "all_gather", "send", *(["recv"] if unified else [])):
        one, ranks = device(unified=unified), Twice()
        group = StagedGroup(ranks, one, in_pieces=True)
        values = one.upload(torch.ones(8))
        monkeypatch.setattr(one, "record", Never)
        ranks.sent = torch.full((8,), 2.0)
        result = getattr(group, use)(values, *([1] if use in ("send", "recv") else []))
        monkeypatch.undo()
        found = ranks.sent if use == "send" else one.download(result)
        assert not (found == (2 if use in ("all_reduce", "recv") else 1)).any(), use
