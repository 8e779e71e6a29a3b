"""The panel's end of a host's cable: its carrier, the bridge, and a socket that takes and gives packets.

By ioctl and not by ``ip``: a fault acts at once, and starts no process.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from ferrule.errors import LabError
from ferrule.lab.netns.namespace import Namespace

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCETHTOOL = 0x8913, 0x8914, 0x8946
_SIOCBRADDIF, _SIOCBRDELIF = 0x89A2, 0x89A3
_IFF_UP = 1
_OFFLOADS = (0x17, 0x1F, 0x24)  # ETHTOOL_STXCSUM, _STSO, _SGSO
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING = 263, 15, 20, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_ALL_PROTOCOLS = 3  # ETH_P_ALL
_BUFFER_BYTES = 16 << 20
"""What a fast sender may have sent before the shaper takes it: several full TCP windows."""


class Ports:
    """The interfaces of a namespace, by name. Holds one socket there."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        with namespace.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        self._socket.close()

    def set_up(self, interface: str, up: bool) -> None:
        """A port that is down takes the carrier from its host."""
        flags = struct.unpack_from(
            "16xH", self._ask(interface, _SIOCGIFFLAGS, struct.pack("16s16x", interface.encode()))
        )
        wanted = flags[0] | _IFF_UP if up else flags[0] & ~_IFF_UP
        self._ask(interface, _SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode(), wanted))

    def join(self, interface: str, bridge: str, member: bool) -> None:
        """Put it into a bridge in which it is not, or take it out of one in which it is."""
        with self._namespace.entered():
            index = socket.if_nametoindex(interface)
        request = _SIOCBRADDIF if member else _SIOCBRDELIF
        self._ask(interface, request, struct.pack("16si12x", bridge.encode(), index))

    def offload(self, interface: str, on: bool) -> None:
        """Whether the kernel may hand over many segments as one packet, and leave checksums to be computed later."""
        # Segments need checksums: those go on first, and off last.
        for command in _OFFLOADS if on else reversed(_OFFLOADS):
            value = array.array("I", [command, int(on)])
            self._ask(interface, _SIOCETHTOOL, struct.pack("16sP8x", interface.encode(), value.buffer_info()[0]))

    def packets(self, interface: str) -> int:
        """A descriptor that reads what the host sends and writes what it gets, each with a virtio_net_hdr before it."""
        with self._namespace.entered():
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        try:
            for option in (_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING, _PACKET_QDISC_BYPASS):
                tap.setsockopt(_SOL_PACKET, option, 1)
            _enlarge(tap)
            tap.bind((interface, _ALL_PROTOCOLS))
        except OSError as error:
            tap.close()
            raise LabError(f"cannot take packets from {interface} ({error.strerror})") from error
        return tap.detach()

    def _ask(self, interface: str, request: int, argument: bytes) -> bytes:
        try:
            return fcntl.ioctl(self._socket, request, argument)
        except OSError as error:
            raise LabError(f"the kernel refused request {request:#x} for {interface}: {error.strerror}") from error


def _enlarge(tap: socket.socket) -> None:
    """As large as wanted for root, for others as large as the machine's limit."""
    for forced, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
        try:
            tap.setsockopt(socket.SOL_SOCKET, forced, _BUFFER_BYTES)
        except PermissionError:
            tap.setsockopt(socket.SOL_SOCKET, plain, _BUFFER_BYTES)
