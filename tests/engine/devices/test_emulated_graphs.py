"""Graphs of the emulated accelerator: they launch what was captured, at its addresses, and refuse what CUDA refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import create_autospec

import pytest
import torch
from plugged import plug_in

from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.emulated.machine import LostDevice, Machine
from ferrule.engine.devices.graphs import Graph, Graphs, TorchGraphs


def device(seed: int | None = None) -> tuple[EmulatedDevice, Graphs]:
    EmulatedDevice()  # so that torch knows it
    plug_in(Machine(0, 1 << 20, seed))
    one = EmulatedDevice()
    graphs = one.graphs()
    assert graphs is not None
    return one, graphs


def captured(graphs: Graphs, work: Callable[[], object]) -> Graph:
    with graphs.beside():
        graphs.begin()
        work()
        return graphs.end()


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_replay_is_one_launch_that_sees_what_was_written_to_its_inputs(seed: int | None) -> None:
    one, graphs = device(seed)
    given, out = one.upload(torch.ones(3)), one.empty((3,), torch.float32)
    back = one.pinned((3,), torch.float32)
    ran = []

    def work() -> None:
        ran.append(True)
        out.copy_((given + 1) * 2)
        back.copy_(out, non_blocking=True)

    before = one.machine.counts
    graph = captured(graphs, work)
    assert one.machine.counts == before, "nothing is launched while work is captured"
    for value in (1.0, 5.0):
        given.copy_(one.pinned((3,), torch.float32).fill_(value), non_blocking=True)
        before = one.machine.counts
        graph.replay()
        assert [new - old for new, old in zip(one.machine.counts, before, strict=True)] == [1, 0, 1]
        one.record().synchronize()
        assert back.tolist() == one.download(out).tolist() == 3 * [(value + 1) * 2]
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda one, x: x.sum().item(), "gives the host a number"),
        (lambda one, x: x.cpu(), "a copy that the host waits for"),
        (lambda one, x: x.copy_(torch.ones(2)), "a copy that the host waits for"),
        (lambda one, x: x[x > 0], "whose size depends on numbers"),
        (lambda one, x: one.synchronize(), "waits for the device"),
        (lambda one, x: one.record().synchronize(), "waits for an event"),
        (lambda one, x: one.pinned((2,), torch.float32), "pinned memory"),
        (lambda one, x: one.download(x), "pinned memory"),
    ],
)
def test_what_needs_the_host_is_refused_and_spoils_the_capture(
    use: Callable[[EmulatedDevice, torch.Tensor], object], why: str
) -> None:
    one, graphs = device()
    values = one.upload(torch.ones(2))
    with graphs.beside():
        graphs.begin()
        with pytest.raises(torch.AcceleratorError, match=f"not permitted when stream is capturing: .*{why}"):
            use(one, values)
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            graphs.end()
        graphs.begin()
        with pytest.raises(torch.AcceleratorError):
            use(one, values)
        graphs.abandon()
    assert one.download(values + 1).tolist() == [2, 2], "the device goes on"


def test_memory_of_the_pool_holds_nothing_from_one_replay_to_the_next_and_is_given_back() -> None:
    one, graphs = device()
    given, used = one.upload(torch.ones(2)), one.machine.used
    kept: list[torch.Tensor] = []

    def work() -> None:
        kept.append(one.empty((2,), torch.float32))  # is never written to
        given.add_(kept[0])

    graph = captured(graphs, work)
    assert one.machine.used > used
    kept[0].copy_(given)
    graph.replay()
    assert one.download(given).isnan().all()
    del graph
    kept.clear()
    one.synchronize()
    assert one.machine.used == used


def test_a_replay_that_reads_memory_which_was_given_back_is_refused() -> None:
    one, graphs = device()
    given, out = [one.upload(torch.ones(2))], one.empty((2,), torch.float32)
    graph = captured(graphs, lambda: out.copy_(given[0][:1] + 1))
    graph.replay()
    assert one.download(out).tolist() == [2, 2]
    given.clear()
    with pytest.raises(RuntimeError, match="memory that was given back"):
        graph.replay()


def test_a_graph_that_is_dropped_while_it_runs_is_refused() -> None:
    one, graphs = device()
    values = one.upload(torch.ones(2))
    graph = captured(graphs, lambda: values.add_(1))
    graph.replay()
    one.synchronize()
    graph.replay()
    del graph
    with pytest.raises(RuntimeError, match="dropped while a launch of it was waiting"):
        one.synchronize()


def test_captures_are_made_beside_the_other_work_and_a_lost_device_has_none() -> None:
    one, graphs = device()
    with pytest.raises(RuntimeError, match="on a stream of its own"):
        graphs.begin()
    values = one.upload(torch.ones(2))
    with graphs.beside():
        values.mul_(3)
    assert one.download(values).tolist() == [3, 3], "each stream waits for the other"
    graph = captured(graphs, lambda: values.add_(1))
    one.machine.lose("fell off the bus")
    for use in (graph.replay, graphs.abandon):
        with pytest.raises(LostDevice, match="fell off"):
            use()


def test_cudas_graphs_are_asked_as_torch_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order and with the arguments that `torch.cuda.graph` uses, of torch's own signatures."""
    said: list[str] = []
    main, side = (create_autospec(torch.cuda.Stream, instance=True) for _ in range(2))
    for name, stream in (("main", main), ("side", side)):
        stream.wait_stream.side_effect = lambda other, name=name: said.append(f"{name} waits")
    graph = create_autospec(torch.cuda.CUDAGraph, instance=True)
    graph.capture_begin.side_effect = lambda **given: said.append(f"begin in {given['pool']}")
    graph.capture_end.side_effect = lambda: said.append("end")
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "the pool")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda chosen: nullcontext(said.append("on side")))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: said.append("empty"))
    graphs = TorchGraphs(torch.device("cuda", 0))
    graphs.settle()
    assert [said.pop(), said.pop()] == ["empty", "synchronize"]
    with graphs.beside():
        graphs.begin()
        assert graphs.end() is graph
    assert said == ["side waits", "on side", "begin in the pool", "end", "main waits"]
    said.clear()
    graph.capture_end.side_effect = RuntimeError("operation failed due to a previous error during capture")
    graphs.begin()
    graphs.abandon()
    graphs.abandon()
    assert said == ["begin in the pool", "synchronize", "synchronize"]
