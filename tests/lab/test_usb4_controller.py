"""Emulated controllers under a driver of our own: rings, cables, faults; and under one that does anything at all."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from usb4_driver import MEMORY, SECONDS, Driver, encode

from ferrule.errors import ConfigError
from ferrule.lab.usb4 import FAULTS, Fault, FaultKind, Usb4Cable, Usb4Host, parse_fault
from ferrule.lab.usb4.packets import Address, Event, HotPlug, Notification, Read, Space, XDomain
from ferrule.lab.usb4.profile import Plan, socket_name
from ferrule.lab.usb4.server import Server
from ferrule.lab.usb4.trace import read
from ferrule.lab.usb4.vfio_user import Access, Command, DmaMap, message

LANE, LANE_2, HOST = 1, 3, 5  # adapters: first lanes of two ports, and the host interface
PORT_RESET = 0x33
CABLE = Usb4Cable("cable0", ("a", 0), ("b", 0))


class Lab:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def ask(self, request: str, **arguments: Any) -> None:
        """Something about the first cable."""
        line = json.dumps({"do": request, "cable": "cable0", **arguments}).encode() + b"\n"
        assert b'"answer"' in ask(self.folder, line)

    def driver(self, host: str) -> Driver:
        driver = Driver.connect(self.folder / socket_name(host, 0))
        self._stack.callback(driver.close)
        driver.start()
        return driver

    def pair(self, *, e2e: bool = True, masks: int = 0xFFFFFFFF) -> Pair:
        """Two drivers, their link up, and a path from ring 1 of the first to ring 2 of the second."""
        first, second = self.driver("a"), self.driver("b")
        for driver in (first, second):
            driver.config_write(Space.ROUTER, 0, 3, 1 << 31)
            driver.config_write(Space.ADAPTER, LANE, PORT_RESET, 1)
        for driver in (first, second):
            driver.config_write(Space.ADAPTER, LANE, PORT_RESET, 0)  # with it come events of what was before
        for driver in (first, second):
            driver.plugged(LANE)
        first.config_write(Space.PATH, HOST, 2, 8 | LANE << 11 | 1 << 31, 0)
        second.config_write(Space.PATH, LANE, 16, 2 | HOST << 11 | 14 << 17 | 1 << 31, 1 << 24)
        return Pair(first, second, e2e, masks)


class Pair:
    def __init__(self, first: Driver, second: Driver, e2e: bool, masks: int) -> None:
        self.first, self.second = first, second
        self.out = first.ring(1, True, 16)
        self.into = second.ring(2, False, 8, e2e=e2e, masks=masks)
        second.post_all(self.into)

    def send(self, count: int) -> list[bytes]:
        """All at a time: this process may lose its processor between two doorbells."""
        frames = [bytes([number]) * (100 + number) for number in range(count)]
        for number, frame in enumerate(frames, 1):
            self.first.send(self.out, frame, doorbell=number == count)
        return frames

    def gone(self) -> None:
        """Wait until all that was sent is on the cable, or lost."""
        deadline = time.monotonic() + SECONDS
        while not self.first.sent(self.out):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def arrived(self, count: int) -> list[bytes]:
        return [frame.data for _ in range(count) if (frame := self.second.receive(self.into)) is not None]


@contextmanager
def running(folder: Path, *cables: Usb4Cable, trace: Path | None = None) -> Iterator[Lab]:
    plan = Plan((Usb4Host("a"), Usb4Host("b", vendor="amd")), cables or (CABLE,))
    server = Server(folder, msgspec.json.decode(msgspec.json.encode(plan), type=Plan), training=0.01)
    if trace is not None:
        server.trace(trace, 64)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with ExitStack() as stack:
            yield Lab(folder, stack)
    finally:
        ask(folder, b'{"do": "down"}\n')
        thread.join(SECONDS)
        server.close()


def ask(folder: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(folder / "control"))
        connection.sendall(line)
        return connection.makefile("rb").readline()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running(tmp_path) as lab:
        yield lab


def test_frames_go_from_ring_to_ring_and_wait_for_buffers(lab: Lab) -> None:
    pair = lab.pair()
    sent = pair.send(12)  # more than there are buffers
    assert pair.arrived(12) == sent
    pair.gone()
    pair.first.send(pair.out, bytes(4096), eof=5, sof=4)
    last = pair.second.receive(pair.into)
    assert last is not None
    assert (len(last.data), last.eof, last.sof, last.flags) == (4096, 5, 4, 0xA)


def test_without_flow_control_frames_are_lost_where_there_is_no_buffer(lab: Lab) -> None:
    pair = lab.pair(e2e=False)
    sent = pair.send(12)
    pair.gone()
    assert pair.arrived(7) == sent[:7]
    assert pair.second.receive(pair.into, 0.05) is None
    assert pair.second.read(0x37800) >> 24 + 2 & 1, "the driver can see that"


def test_only_frames_with_the_right_marks_begin_and_end(lab: Lab) -> None:
    pair = lab.pair(masks=1 << 2 << 16 | 1 << 3)
    pair.first.send(pair.out, b"wrong", eof=2, sof=2)
    pair.first.send(pair.out, b"right", eof=3, sof=2)
    assert pair.arrived(1) == [b"right"]


def test_interrupts_come_when_they_are_allowed(lab: Lab) -> None:
    pair = lab.pair()
    bit = 12 + 2
    while pair.second.interrupted(0):
        pass
    pair.send(1)
    assert pair.arrived(1)
    assert not pair.second.interrupted(0.02), "masked"
    pair.second.write(0x38200, 1 << bit)
    assert pair.second.interrupted(SECONDS), "what waited is told when the mask is taken away"
    pair.second.write(0x38208, 1 << bit)
    assert pair.second.read(0x38200) == 0, "writing a bit here clears it there"


def test_a_stopped_ring_takes_nothing_more(lab: Lab) -> None:
    pair = lab.pair()
    pair.second.stop(pair.into)
    before = bytes(pair.second.memory)
    pair.send(3)
    pair.gone()
    assert bytes(pair.second.memory) == before


def test_chance_falls_on_frames_and_is_counted(lab: Lab) -> None:
    pair = lab.pair()
    for fault, arrives in ((FaultKind.DROP, 0), (FaultKind.DUPLICATE, 2), (FaultKind.CORRUPT, 1)):
        lab.ask("fault", kind=fault, chance=1, sender="a")
        (sent,) = pair.send(1)
        pair.gone()
        frames = [pair.second.receive(pair.into) for _ in range(arrives)]
        lab.ask("heal")
        for frame in frames:
            assert frame is not None
            assert (frame.data != sent) == bool(frame.flags & 1) == (fault == FaultKind.CORRUPT)
    assert pair.second.receive(pair.into, 0.01) is None
    counters = json.loads(ask(lab.folder, b'{"do": "counters"}\n'))["answer"]["cables"]["cable0"]["a"]
    assert [counters[name] for name in ("frames", "delivered", "dropped", "duplicated", "corrupted")] == [3, 3, 1, 1, 1]


def test_frames_change_places(lab: Lab) -> None:
    pair = lab.pair()
    lab.ask("fault", kind="reorder", chance=1, sender="a")
    first, second = pair.send(2)
    assert pair.arrived(2) == [second, first]


def test_controllers_that_stand_still_or_keep_quiet(lab: Lab) -> None:
    pair = lab.pair()
    for kind, sender in (("stall-tx", "a"), ("stall-rx", "b")):
        lab.ask("fault", kind=kind, chance=1, sender=sender)
        sent = pair.send(1)
        assert pair.second.receive(pair.into, 0.02) is None
        lab.ask("heal")
        assert pair.arrived(1) == sent
    pair.second.write(0x38200, 1 << 12 + 2)
    lab.ask("fault", kind="lose-interrupts", chance=1, sender="b")
    while pair.second.interrupted(0):
        pass
    assert pair.arrived(len(pair.send(1)))
    assert not pair.second.interrupted(0.02)
    counters = json.loads(ask(lab.folder, b'{"do": "counters"}\n'))["answer"]["hosts"]["b"][0]
    assert counters["lost_interrupts"] > 0


def test_a_slow_cable_is_as_slow_as_it_says(lab: Lab) -> None:
    pair = lab.pair()
    ask(lab.folder, b'{"do": "reshape", "cable": "cable0", "rate": 1e6, "delay_us": 20000}\n')
    start = time.monotonic()
    pair.send(5)
    assert len(pair.arrived(5)) == 5
    assert time.monotonic() - start > 0.02 + 5 * 100 * 8 / 1e6


def test_lanes_are_bonded_when_both_ends_ask(lab: Lab) -> None:
    pair = lab.pair()
    ends = (pair.first, pair.second)
    for driver in ends:
        assert driver.config_read(Space.ADAPTER, LANE, 0x11)[0] >> 16 == 0x4 | 1 << 4 | 2 << 10
        for lane in (LANE, LANE + 1):
            driver.config_write(Space.ADAPTER, lane, 0x11, 0xC | 3 << 4)
    pair.first.config_write(Space.ADAPTER, LANE, 0x11, 0xC | 3 << 4 | 1 << 15)
    assert [driver.config_read(Space.ADAPTER, LANE, 0x11)[0] >> 20 & 0x3F for driver in ends] == [2, 2]
    assert pair.first.config_read(Space.ADAPTER, LANE, 4)[0] >> 20 == 120, "buffers of both lanes"
    lab.ask("fault", kind="half-lane", chance=1, sender=None)
    for driver in ends:
        driver.plugged(LANE, unplug=True)
        driver.plugged(LANE)
    assert [driver.config_read(Space.ADAPTER, LANE, 0x11)[0] >> 20 & 0x3F for driver in ends] == [1, 1]
    assert pair.first.config_read(Space.ADAPTER, LANE + 1, 0x11)[0] >> 26 & 15 == 7


def test_hosts_talk_and_hear_when_the_other_is_gone(lab: Lab) -> None:
    pair = lab.pair()
    pair.first.tell(XDomain(LANE, (0x08000006, 1, 2, 3, 4, 12), response=False))
    heard = pair.second.hear()
    assert heard == XDomain(LANE, (0x08000006, 1, 2, 3, 4, 12), response=False, from_router=True)
    lab.ask("fault", kind="one-way", chance=1, sender="a")
    pair.first.tell(XDomain(LANE, (1, 2), response=False))
    pair.second.tell(XDomain(LANE, (3, 4), response=True))
    assert pair.first.hear() == XDomain(LANE, (3, 4), response=True, from_router=True)
    pair.second.close()
    pair.first.plugged(LANE, unplug=True)
    pair.first.tell(Read(LANE, Address(Space.ROUTER, 0, 0, 1)))
    assert pair.first.hear() == Notification(LANE, Event.NOT_CONNECTED, LANE, from_router=True)


def test_a_plug_event_waits_for_the_one_before_it(lab: Lab) -> None:
    first = lab.pair().first
    lab.ask("plug", on=False)
    lab.ask("plug", on=True)
    told = [first.hear() for _ in range(3)]
    assert told == [HotPlug(0, LANE, unplug=True)] * 3, "is told again until it is acknowledged"
    first.plugged(LANE, unplug=True)
    first.plugged(LANE)


def test_answers_come_one_at_a_time(lab: Lab) -> None:
    first = lab.driver("a")
    seen = 0
    for _ in range(50):  # as often as this test loses its processor at the wrong moment
        asked = time.monotonic()
        for _ in range(2):
            first.tell(Read(0, Address(Space.ROUTER, 0, 0, 1)))
        while not (arrived := first.arrived(first.control_in)):
            assert time.monotonic() - asked < SECONDS
        time.sleep(0.005)
        again = first.arrived(first.control_in)
        if time.monotonic() - asked < 0.04:  # after 0.05 s the driver has had its time
            assert (arrived, again) == (1, 1), "the second one waits until the driver has dealt with the first"
            seen += 1
        assert isinstance(first.hear(), Read)
        assert isinstance(first.hear(), Read)
    assert seen


def test_an_answer_waits_for_a_driver_that_deals_with_none_no_longer_than_it_must(lab: Lab) -> None:
    first = lab.driver("a")
    for _ in range(2):
        first.tell(Read(0, Address(Space.ROUTER, 0, 0, 1)))
    asked = time.monotonic()
    while first.arrived(first.control_in) < 2:
        assert time.monotonic() - asked < SECONDS
        time.sleep(0.001)


@pytest.mark.slow
def test_a_controller_that_sleeps_is_woken_by_a_cable(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.lab.usb4.network._EVENT_TRIES", 3)
    first = lab.pair().first
    lab.ask("plug", on=False)
    first.plugged(LANE, unplug=True)
    for ring in (first.control_in, first.control_out):
        first.stop(ring)
    first.sleep()
    assert not first.called()
    lab.ask("plug", on=True)
    deadline = time.monotonic() + SECONDS
    while not first.called():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(1.2)  # longer than the event is told to one that is awake
    first.wake_up()
    assert not first.called()
    first.plugged(LANE)


def test_two_cables_between_the_same_hosts(tmp_path: Path) -> None:
    with running(tmp_path, CABLE, Usb4Cable("cable1", ("a", 1), ("b", 1), gbps=10, lanes=1)) as lab:
        pair = lab.pair()
        pair.first.tell(XDomain(LANE_2, (1, 2), response=False))
        assert pair.second.hear() == XDomain(LANE_2, (1, 2), response=False, from_router=True)
        assert pair.first.config_read(Space.ADAPTER, LANE_2, 0x11)[0] >> 16 & 15 == 8, "10 Gb/s"
        lab.ask("fault", kind="stall-tx", chance=1, sender="a")
        lab.ask("heal", cable="cable1")  # of the same controller
        sent = pair.send(1)
        assert pair.second.receive(pair.into, 0.02) is None
        lab.ask("heal")
        assert pair.arrived(1) == sent


def test_what_crosses_the_cable_is_in_the_trace(tmp_path: Path) -> None:
    with running(tmp_path, trace=tmp_path / "trace") as lab:
        pair = lab.pair()
        pair.send(2)
        pair.arrived(2)
        pair.first.tell(XDomain(LANE, (1, 2), response=False))
        pair.second.hear()
    crossed = [each for each in read(tmp_path / "trace") if each.interface == "cable0 from a"]
    assert [(each.control, each.length, len(each.data)) for each in crossed] == [
        (False, 100, 64),
        (False, 101, 64),
        (True, 20, 20),
    ]


def test_any_registers_and_descriptors_reach_no_other_memory(lab: Lab) -> None:
    """A guest whose driver has gone mad, with half of its memory mapped; its neighbour goes on."""
    pair = lab.pair()
    wild = random.Random(7)
    for _ in range(600):
        offset = wild.choice([0, 0x8000, 0x19800, 0x29800, 0x37800, 0x38200, 0x38C00]) + wild.randrange(0, 0x60)
        size = wild.choice([1, 2, 4, 8])
        if wild.random() < 0.1:
            offset = wild.randrange(1 << 18)
        with suppress(OSError):
            pair.first.write(offset, wild.getrandbits(8 * size), size)
        if wild.random() < 0.1:
            pair.first.memory[: 1 << 12] = wild.randbytes(1 << 12)
    with suppress(OSError):
        pair.first.ask(Command.DEVICE_RESET)
    assert pair.first.read(0x39640) == 12
    assert pair.second.config_read(Space.ROUTER, 0, 0) == (0x1022 | 0x158D << 16,)


def test_messages_that_break_the_protocol_end_only_their_connection(lab: Lab) -> None:
    good = lab.driver("b")
    wild = random.Random(3)
    for _ in range(60):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(OSError):
            connection.settimeout(SECONDS)
            connection.connect(str(lab.folder / socket_name("a", 0)))
            for _ in range(wild.randrange(1, 4)):
                payload = wild.randbytes(wild.randrange(80))
                command = wild.choice(list(Command))
                connection.sendall(message(1, command, payload) if wild.random() < 0.8 else payload)
    assert good.read(0x39640) == 12
    assert lab.driver("a").read(0x39640) == 12


def test_memory_that_is_not_there_is_not_mapped(lab: Lab) -> None:
    driver = lab.driver("a")
    fd = os.memfd_create("short")
    os.ftruncate(fd, 4096)
    for offset, address, size in (
        (0, 1 << 40, 8192),
        (4096, 1 << 40, 4096),
        (0, (1 << 64) - 4096, 8192),
        (1, 1 << 40, 4096),
    ):
        with pytest.raises(OSError, match="Invalid argument"):
            driver.ask(Command.DMA_MAP, encode(DmaMap(3, offset, address, size)), (fd,))
    os.ftruncate(fd, 1 << 60)
    with pytest.raises(OSError, match="Invalid argument"):  # more than there can be
        driver.ask(Command.DMA_MAP, encode(DmaMap(3, 0, 1 << 60, 1 << 60)), (fd,))
    with pytest.raises(OSError, match="Invalid argument"):  # twice
        driver.ask(Command.DMA_MAP, encode(DmaMap(3, 0, 0x100000 + MEMORY - 4096, 4096)), (fd,))
    with pytest.raises(OSError, match="Invalid argument"):
        driver.ask(Command.REGION_READ, Access(0x3FFFE, 0, 4).encode())
    os.close(fd)


def test_requests_that_are_none_are_answered(lab: Lab) -> None:
    for line in (
        b"\n",
        b"[]\n",
        b'{"do": "what"}\n',
        b'{"do": "plug"}\n',
        b'{"do": "plug", "cable": "x", "on": true}\n',
    ):
        assert b'"error"' in ask(lab.folder, line)
    assert b'"answer"' in ask(
        lab.folder, b'{"do": "fault", "cable": "cable0", "kind": "drop", "chance": 0.5, "sender": "a"}\n'
    )
    assert b"drop=0.5 from a" in ask(lab.folder, b'{"do": "state"}\n')


def test_what_does_not_fit_together_is_refused() -> None:
    a, b = Usb4Host("a"), Usb4Host("b")
    for wrong in (
        lambda: Usb4Host("a b"),
        lambda: Usb4Host("a", hops=1),
        lambda: Usb4Host("a", vendor="acme"),
        lambda: Usb4Host("a", hops=33, vendor="amd"),
        lambda: Usb4Cable("c", ("a", 0), ("b", 0), gbps=40),
        lambda: Plan((a, a)),
        lambda: Plan((a, b), (Usb4Cable("c", ("a", 0), ("b", 4)),)),
        lambda: Plan((a, b), (CABLE, Usb4Cable("cable1", ("a", 0), ("b", 1)))),
        lambda: Plan((a, b), (Usb4Cable("c", ("a", 0), ("a", 1)),)),
        lambda: Fault(FaultKind.DROP, 0),
        lambda: Fault(FaultKind.HALF_LANE, 0.5),
        lambda: Fault(FaultKind.ONE_WAY),
        lambda: parse_fault("drip"),
        lambda: parse_fault("drop=often"),
    ):
        with pytest.raises(ConfigError):
            wrong()
    assert parse_fault("drop=1%", "a") == Fault(FaultKind.DROP, 0.01, "a")
    assert set(FAULTS) == set(FaultKind)
