"""A guest's connection to its controller: vfio-user messages in, answers out. An error ends this connection only."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace

from ferrule import _emulation
from ferrule.lab.usb4 import pci, vfio_user
from ferrule.lab.usb4.vfio_user import (
    HEADER_BYTES,
    Access,
    Command,
    DmaMap,
    DmaUnmap,
    Header,
    ProtocolError,
    SetIrqs,
    reply,
)

REGISTERS_BYTES = 0x40000
_REGIONS, _IRQS = 9, 5
_CONFIG_REGION, _MSIX_IRQ = 7, 2
_MOST_FDS = 16
_MOST_WAITING = 64
_CHUNK_BYTES = 1 << 16
_SEND_SECONDS = 5.0
_PAGE = 0x1000
_RING_PAGES = ((0x0000, _PAGE), (0x8000, _PAGE))
_INTERRUPT_PAGE = (0x38000, _PAGE)  # where drivers of Intel's only store and load; the others write bits to clear
_INTEL = 0x8086


class Gone(Exception):
    """The guest closed the connection, or broke the protocol."""


class Session:
    """``reset``: called when the guest resets the device. Not blocking, but for answers that a guest does not take."""

    def __init__(
        self,
        connection: socket.socket,
        engine: _emulation.Usb4Engine,
        controller: int,
        ids: tuple[int, int],
        reset: Callable[[], None],
    ) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._engine = engine
        self._controller = controller
        self._reset = reset
        self._ids = ids
        self._config = pci.config_space(ids)
        self._buffer = bytearray()
        self._fds: list[int] = []
        pages = (*_RING_PAGES, _INTERRUPT_PAGE) if ids[0] == _INTEL else _RING_PAGES
        self._sizes = {pci.REGISTERS_BAR: REGISTERS_BYTES, pci.MSIX_BAR: pci.MSIX_BYTES, _CONFIG_REGION: pci.SIZE}
        self._areas = {pci.REGISTERS_BAR: pages}

    def close(self) -> None:
        self.connection.close()
        self._drop_fds()
        self._engine.forget_memory(self._controller)

    def wake(self) -> bool:
        """Tell a controller that its driver has put to sleep that there is something for it; False if it is awake."""
        pci.wake(self._config)
        return pci.asleep(self._config)

    def receive(self) -> None:
        """Answer what has come. Raises `Gone`."""
        try:
            data, fds, _, _ = socket.recv_fds(self.connection, _CHUNK_BYTES, _MOST_FDS)
        except BlockingIOError:
            return
        except OSError as error:
            raise Gone(str(error)) from None
        self._fds += fds
        if not data or len(self._fds) > _MOST_WAITING:
            raise Gone("closed" if not data else "sends descriptors that belong to no message")
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            try:
                header = vfio_user.decode_header(bytes(self._buffer[:HEADER_BYTES]))
            except ProtocolError as error:
                raise Gone(str(error)) from None
            if len(self._buffer) < header.size:
                return
            payload = bytes(self._buffer[HEADER_BYTES : header.size])
            del self._buffer[: header.size]
            self._answer(header, payload)
        if not self._buffer:
            self._drop_fds()  # of messages that take none

    def _answer(self, header: Header, payload: bytes) -> None:
        if header.reply:
            return  # to nothing that we asked
        fds: list[int] = []
        try:
            said, fds = self._handle(header.command, payload)
            answer = reply(header, said)
        except ProtocolError as error:
            answer = reply(header, error=error.errno)
        except (ValueError, RuntimeError):  # what the engine raises for memory that cannot be mapped
            answer = reply(header, error=errno.EINVAL)
        if header.no_reply:
            return
        try:
            self.connection.settimeout(_SEND_SECONDS)
            socket.send_fds(self.connection, [answer], fds) if fds else self.connection.sendall(answer)
            self.connection.setblocking(False)
        except OSError as error:
            raise Gone(f"does not take answers ({error})") from None

    def _handle(self, command: int, payload: bytes) -> tuple[bytes, list[int]]:
        """The answer, and descriptors that go with it. Raises `ProtocolError` or what the engine raises."""
        match command:
            case Command.VERSION:
                major, _ = vfio_user.decode_version(payload)
                if major != 0:
                    raise ProtocolError(f"version {major}", errno.EPROTO)
                return vfio_user.version({"max_msg_fds": _MOST_FDS, "max_data_xfer_size": 1 << 16}), []
            case Command.DMA_MAP:
                self._map(vfio_user.decode_dma_map(payload))
                return b"", []
            case Command.DMA_UNMAP:
                self._unmap(vfio_user.decode_dma_unmap(payload))
                return payload[:24], []
            case Command.DEVICE_INFO:
                return vfio_user.device_info(_REGIONS, _IRQS), []
            case Command.REGION_INFO:
                return self._region(vfio_user.decode_index(payload), vfio_user.decode_room(payload))
            case Command.IRQ_INFO:
                index = vfio_user.decode_index(payload)
                return vfio_user.irq_info(index, pci.VECTORS if index == _MSIX_IRQ else 0), []
            case Command.SET_IRQS:
                self._interrupts(vfio_user.decode_set_irqs(payload))
                return b"", []
            case Command.REGION_READ:
                access = vfio_user.decode_read(payload)
                return replace(access, data=self._read(access)).encode(), []
            case Command.REGION_WRITE:
                access = vfio_user.decode_write(payload)
                self._write(access)
                return replace(access, data=b"").encode(), []
            case Command.REGION_WRITE_MULTI:
                for access in vfio_user.decode_write_multi(payload):
                    self._write(access)
                return payload[:8], []
            case Command.DEVICE_RESET:
                self._config = pci.config_space(self._ids)
                self._reset()
                return b"", []
        raise ProtocolError(f"no command {command}", errno.EOPNOTSUPP)

    def _map(self, asked: DmaMap) -> None:
        """Memory without a file cannot be reached by a device: that of other devices, mostly."""
        if not self._fds:
            return
        fd = self._fds.pop(0)
        try:
            writable = bool(asked.flags & vfio_user.DMA_WRITE)
            self._engine.map_memory(self._controller, asked.address, asked.size, fd, asked.offset, writable)
        finally:
            os.close(fd)

    def _unmap(self, asked: DmaUnmap) -> None:
        if asked.flags & vfio_user.DMA_UNMAP_ALL:
            self._engine.unmap_memory(self._controller, 0, (1 << 64) - 1)
        else:
            self._engine.unmap_memory(self._controller, asked.address, asked.size)

    def _region(self, index: int, room: int) -> tuple[bytes, list[int]]:
        areas = self._areas.get(index, ())
        fds = [self._engine.registers(self._controller)] if areas else []
        return vfio_user.region_info(index, self._sizes.get(index, 0), areas, room), fds

    def _interrupts(self, asked: SetIrqs) -> None:
        if asked.index != _MSIX_IRQ:
            return
        if asked.start + asked.count > pci.VECTORS:
            raise ProtocolError(f"vectors up to {asked.start + asked.count}")
        if asked.kind == vfio_user.IRQ_NONE and not asked.count:
            for vector in range(pci.VECTORS):
                self._engine.set_interrupt(self._controller, vector, -1)
        if asked.kind != vfio_user.IRQ_EVENTFD:
            return
        for vector in range(asked.start, asked.start + asked.count):
            fd = self._fds.pop(0) if self._fds else -1
            try:
                self._engine.set_interrupt(self._controller, vector, fd)
            finally:
                if fd >= 0:
                    os.close(fd)

    def _read(self, access: Access) -> bytes:
        self._check(access)
        if access.region == pci.REGISTERS_BAR:
            return self._engine.read(self._controller, access.offset, access.count)
        if access.region == _CONFIG_REGION:
            return bytes(self._config[access.offset : access.offset + access.count])
        return bytes(access.count)

    def _write(self, access: Access) -> None:
        self._check(access)
        if access.region == pci.REGISTERS_BAR:
            self._engine.write(self._controller, access.offset, access.data)
        elif access.region == _CONFIG_REGION:
            pci.write(self._config, access.offset, access.data)

    def _check(self, access: Access) -> None:
        size = self._sizes.get(access.region, 0)
        if access.offset + access.count > size:
            raise ProtocolError(f"{access.count} bytes at {access.offset:#x} of region {access.region}")

    def _drop_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
