"""A driver without a kernel: does to a controller what QEMU and thunderbolt.ko do, as far as tests need it."""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from dataclasses import astuple, dataclass, field
from pathlib import Path

from ferrule.lab.usb4 import packets, vfio_user
from ferrule.lab.usb4.packets import Address, HotPlug, Notification, Packet, Read, Space, Write
from ferrule.lab.usb4.vfio_user import Access, Command, DmaMap, DmaUnmap, SetIrqs

SECONDS = 20.0
MEMORY = 1 << 20
_ADDRESS = 0x100000
_ENABLE, _RAW, _E2E = 1 << 31, 1 << 30, 1 << 28
_TX, _RX, _TX_OPTIONS, _RX_OPTIONS = 0, 0x8000, 0x19800, 0x29800
_COMPLETED, _INTERRUPT = 2, 8
_BUFFER = 4096
_CONFIG, _POWER_CONTROL = 7, 0x44  # the region of the PCI configuration space, and the word for power in it


def encode(asked: DmaMap | DmaUnmap | SetIrqs) -> bytes:
    """A request's payload, which begins with its size."""
    form = {DmaMap: "<IIQQQ", DmaUnmap: "<IIQQ", SetIrqs: "<IIIII"}[type(asked)]
    return struct.pack(form, struct.calcsize(form), *astuple(asked))


@dataclass
class Ring:
    """``base``: in the guest's memory; descriptors, and behind them a buffer for each."""

    hop: int
    transmit: bool
    base: int
    size: int
    head: int = 0
    tail: int = 0
    registers: int = field(init=False)

    def __post_init__(self) -> None:
        self.registers = (_TX if self.transmit else _RX) + 16 * self.hop

    def buffer(self, index: int) -> int:
        return self.base + 4096 + index * _BUFFER


@dataclass(frozen=True)
class Received:
    data: bytes
    eof: int
    sof: int
    flags: int


class Driver:
    """``connection``: to the controller's socket, or one end of a pair whose other end a `Session` has."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        self._connection = connection
        self._number = 0
        self._fd = os.memfd_create("guest")
        os.ftruncate(self._fd, MEMORY)
        self.memory = mmap.mmap(self._fd, MEMORY)
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self._free = 0

    @classmethod
    def connect(cls, path: Path) -> Driver:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(SECONDS)
        connection.connect(str(path))
        return cls(connection)

    def close(self) -> None:
        """May be called twice."""
        self._connection.close()
        self.memory.close()
        for fd in (self._fd, self.event):
            if fd >= 0:
                os.close(fd)
        self._fd = self.event = -1

    def ask(self, command: Command, payload: bytes = b"", fds: tuple[int, ...] = ()) -> tuple[bytes, list[int]]:
        """The answer's payload and descriptors. Raises `OSError` with the error that it names."""
        self._number = (self._number + 1) & 0xFFFF
        socket.send_fds(self._connection, [vfio_user.message(self._number, command, payload)], list(fds))
        data, received = b"", []
        while len(data) < 16 or len(data) < vfio_user.decode_header(data[:16]).size:
            more, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, 4)
            if not more:
                raise ConnectionResetError("the controller closed the connection")
            data += more
            received += descriptors
        header = vfio_user.decode_header(data[:16])
        assert header.reply
        assert header.message == self._number
        if header.error:
            raise OSError(header.error, os.strerror(header.error))
        return data[16:], received

    def start(self) -> None:
        """Do as QEMU does at its start, and set up the control channel as thunderbolt.ko does."""
        self.ask(Command.VERSION, vfio_user.version({"max_msg_fds": 8}))
        self.ask(Command.DMA_MAP, encode(DmaMap(3, 0, _ADDRESS, MEMORY)), (self._fd,))
        self.ask(Command.SET_IRQS, encode(SetIrqs(vfio_user.IRQ_EVENTFD, 2, 0, 1)), (self.event,))
        self._start_control()

    def _start_control(self) -> None:
        self.control_out, self.control_in = self.ring(0, True, 8), self.ring(0, False, 8)
        self.post_all(self.control_in)

    def sleep(self) -> None:
        """Power state D3hot, to be called (PME) when there is something."""
        self._set_power(3 | 1 << 8)

    def called(self) -> bool:
        answer, _ = self.ask(Command.REGION_READ, Access(_POWER_CONTROL, _CONFIG, 2).encode())
        return bool(int.from_bytes(answer[16:], "little") & 1 << 15)

    def wake_up(self) -> None:
        self._set_power(1 << 15)
        self._start_control()

    def _set_power(self, value: int) -> None:
        self.ask(Command.REGION_WRITE, Access(_POWER_CONTROL, _CONFIG, 2, value.to_bytes(2, "little")).encode())

    def read(self, offset: int, size: int = 4) -> int:
        answer, _ = self.ask(Command.REGION_READ, Access(offset, 0, size).encode())
        return int.from_bytes(answer[16:], "little")

    def write(self, offset: int, value: int, size: int = 4) -> None:
        self.ask(Command.REGION_WRITE, Access(offset, 0, size, value.to_bytes(size, "little")).encode())

    def ring(self, hop: int, transmit: bool, size: int, *, e2e: bool = False, masks: int = 0xFFFFFFFF) -> Ring:
        """A started ring; frames of ring 0 are raw, those of others up to 4096 bytes."""
        ring = Ring(hop, transmit, _ADDRESS + self._free, size)
        self._free += 4096 + size * _BUFFER
        assert self._free <= MEMORY
        self.write(ring.registers, ring.base)
        self.write(ring.registers + 4, 0)
        self.write(ring.registers + 12, size | (0 if transmit or hop else 256) << 16)
        options = (_TX_OPTIONS if transmit else _RX_OPTIONS) + 32 * hop
        if not transmit:
            self.write(options + 4, masks)
        self.write(options, _ENABLE | _RAW * (hop == 0) | _E2E * e2e)
        return ring

    def stop(self, ring: Ring) -> None:
        self.write((_TX_OPTIONS if ring.transmit else _RX_OPTIONS) + 32 * ring.hop, 0)

    def post_all(self, ring: Ring) -> None:
        """Give an Rx ring all the buffers that it has room for."""
        while (ring.head + 1) % ring.size != ring.tail:
            struct.pack_into("<QII", self.memory, self._place(ring, ring.head), ring.buffer(ring.head), 12 << 20, 0)
            ring.head = (ring.head + 1) % ring.size
        self.write(ring.registers + 8, ring.head)

    def send(self, ring: Ring, data: bytes, eof: int = 3, sof: int = 2, *, doorbell: bool = True) -> None:
        index = ring.head
        at = ring.buffer(index) - _ADDRESS
        self.memory[at : at + len(data)] = data
        word = len(data) & 0xFFF | eof << 12 | sof << 16 | (4 | _INTERRUPT) << 20
        struct.pack_into("<QII", self.memory, self._place(ring, index), ring.buffer(index), word, 0)
        ring.head = (index + 1) % ring.size
        if doorbell:
            self.write(ring.registers + 8, ring.head << 16)

    def sent(self, ring: Ring) -> bool:
        """Whether all that was given to a Tx ring has gone."""
        last = (ring.head - 1) % ring.size
        return bool(struct.unpack_from("<I", self.memory, self._place(ring, last) + 8)[0] >> 20 & _COMPLETED)

    def receive(self, ring: Ring, seconds: float = SECONDS) -> Received | None:
        """The next frame, or None if there is none after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            word = struct.unpack_from("<I", self.memory, self._place(ring, ring.tail) + 8)[0]
            if word >> 20 & _COMPLETED and ring.tail != ring.head:
                break
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        at = ring.buffer(ring.tail) - _ADDRESS
        data = self.memory[at : at + (word & 0xFFF or 4096)]
        ring.tail = (ring.tail + 1) % ring.size
        self.post_all(ring)
        return Received(data, word >> 12 & 15, word >> 16 & 15, word >> 20)

    def arrived(self, ring: Ring) -> int:
        """Number of frames in an Rx ring."""
        count = 0
        while count < ring.size - 1:
            place = self._place(ring, (ring.tail + count) % ring.size)
            if not struct.unpack_from("<I", self.memory, place + 8)[0] >> 20 & _COMPLETED:
                break
            count += 1
        return count

    def interrupted(self, seconds: float) -> bool:
        """Whether an interrupt was raised since this was last asked."""
        if not select.select([self.event], [], [], seconds)[0]:
            return False
        os.eventfd_read(self.event)
        return True

    def tell(self, packet: Packet) -> None:
        self.send(self.control_out, packets.encode(packet), packet.kind, packet.kind)

    def hear(self, seconds: float = SECONDS) -> Packet:
        """The next control packet."""
        frame = self.receive(self.control_in, seconds)
        assert frame is not None, "no control packet came"
        return packets.decode(frame.eof, frame.data)

    def config_read(self, space: Space, adapter: int, offset: int, count: int = 1) -> tuple[int, ...]:
        self.tell(Read(0, Address(space, adapter, offset, count)))
        answer = self._answered()
        assert isinstance(answer, Read), answer
        return answer.data

    def config_write(self, space: Space, adapter: int, offset: int, *data: int) -> None:
        self.tell(Write(0, Address(space, adapter, offset, len(data)), data))
        answer = self._answered()
        assert isinstance(answer, Write), answer

    def plugged(self, adapter: int, unplug: bool = False) -> None:
        """Wait for a hot plug event of this adapter, and acknowledge it."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            event = self.hear()
            if isinstance(event, HotPlug):
                self.tell(Notification(0, 7, event.adapter, 3 if event.unplug else 2))
                if (event.adapter, event.unplug) == (adapter, unplug):
                    return
        raise AssertionError(f"adapter {adapter} was not {'un' * unplug}plugged")

    def _answered(self) -> Packet:
        """The next packet that is no event."""
        while isinstance(packet := self.hear(), HotPlug):
            self.tell(Notification(0, 7, packet.adapter, 3 if packet.unplug else 2))
        return packet

    def _place(self, ring: Ring, index: int) -> int:
        return ring.base - _ADDRESS + 16 * index
