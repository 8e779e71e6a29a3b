"""The network interfaces of a namespace, by rtnetlink(7) and ioctl: at once, and without a process.

Not by pyroute2: importing it takes five times as long as importing this room, and it sets a queue in 14 ms, where this
takes 2 and the fault shall act at once.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct

from ferrule.errors import LabError
from ferrule.lab.netns.namespace import Namespace
from ferrule.lab.netns.pace import Pace

_ERROR, _NEW_LINK, _NEW_QDISC, _DEL_QDISC = 2, 16, 36, 37
_REQUEST, _ACK, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_ROOT = 0xFFFFFFFF
_KIND, _OPTIONS = 1, 2  # TCA_*
_PARAMETERS, _RATE64, _BURST = 1, 4, 6  # TCA_TBF_*
_MASTER, _GSO_MAX_SIZE = 10, 41  # IFLA_*
_IFF_UP = 1
_ETHERNET_FRAMES = 1  # TC_LINKLAYER_ETHERNET
_LEGACY_MAX = 0xFFFFFFFF
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24)  # ETHTOOL_STXCSUM, _STSO, _SGSO
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING = 263, 15, 20, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_ALL_PROTOCOLS = 3  # ETH_P_ALL
_BUFFER_BYTES = 16 << 20
"""Buffer for what a fast sender may have sent before the shaper takes it: several full TCP windows."""
_SECONDS = 5.0


class Interfaces:
    """Those of one namespace, by name. Holds one socket there; every request raises `LabError` with the kernel's
    reason."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        with namespace.entered():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.settimeout(_SECONDS)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def set_up(self, interface: str, up: bool) -> None:
        """A port of the panel that is down takes the carrier from its host."""
        self._change(interface, f"switch {interface} {'on' if up else 'off'}", flags=_IFF_UP * up, mask=_IFF_UP)

    def join(self, interface: str, bridge: str, member: bool) -> None:
        """Put it into a bridge in which it is not, or take it out of one in which it is."""
        master = _attribute(_MASTER, struct.pack("=I", self._index(bridge) if member else 0))
        self._change(interface, f"put {interface} into {bridge}, or take it out", master)

    def limit_segments(self, interface: str, count: int) -> None:
        """TCP hands over at most ``count`` bytes as one packet."""
        most = _attribute(_GSO_MAX_SIZE, struct.pack("=I", count))
        self._change(interface, f"limit the segments of {interface}", most)

    def pace(self, interface: str, pace: Pace) -> None:
        """Have its packets wait in a token bucket filter, in place of whatever they waited in before."""
        spec = struct.pack("=BBHhHI", 0, _ETHERNET_FRAMES, 0, 0, 0, min(pace.rate, _LEGACY_MAX))
        no_peak = struct.pack("=BBHhHI", 0, _ETHERNET_FRAMES, 0, 0, 0, 0)
        options = _attribute(_PARAMETERS, spec + no_peak + struct.pack("=III", min(pace.limit, _LEGACY_MAX), 0, 0))
        if pace.rate > _LEGACY_MAX:
            options += _attribute(_RATE64, struct.pack("=Q", pace.rate))
        options += _attribute(_BURST, struct.pack("=I", min(pace.burst, _LEGACY_MAX)))
        body = self._qdisc(interface) + _attribute(_KIND, b"tbf\0") + _attribute(_OPTIONS, options)
        self._ask(_NEW_QDISC, _CREATE | _REPLACE, body, f"pace {interface}")

    def unpace(self, interface: str) -> None:
        """Undo `pace`."""
        self._ask(_DEL_QDISC, 0, self._qdisc(interface), f"unpace {interface}")

    def offload(self, interface: str, on: bool) -> None:
        """Whether the kernel may hand over many segments as one packet, and leave checksums to be computed later."""
        # Segments need checksums: those go on first, and off last.
        for command in _OFFLOADS if on else reversed(_OFFLOADS):
            value = array.array("I", [command, int(on)])
            request = struct.pack("16sP8x", interface.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(self._socket, _SIOCETHTOOL, request)
            except OSError as error:
                raise LabError(f"cannot set what {interface} leaves to a card: {error.strerror}") from error

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

    def _change(self, interface: str, doing: str, attribute: bytes = b"", *, flags: int = 0, mask: int = 0) -> None:
        body = struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, self._index(interface), flags, mask)
        self._ask(_NEW_LINK, 0, body + attribute, doing)

    def _qdisc(self, interface: str) -> bytes:
        return struct.pack("=BBHiIII", socket.AF_UNSPEC, 0, 0, self._index(interface), 0, _ROOT, 0)

    def _index(self, interface: str) -> int:
        with self._namespace.entered():
            return socket.if_nametoindex(interface)

    def _ask(self, kind: int, flags: int, body: bytes, doing: str) -> None:
        self._sequence += 1
        header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _ACK | flags, self._sequence, 0)
        try:
            self._socket.send(header + body)
            answer = self._socket.recv(1 << 16)
        except OSError as error:
            raise LabError(f"cannot {doing}: {error}") from error
        _, kind, _, _, _, error_number = struct.unpack_from("=IHHIIi", answer)
        if kind != _ERROR or error_number != 0:
            raise LabError(f"cannot {doing}: {os.strerror(-error_number)}")


def _attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("=HH", size, kind) + payload + bytes(-size % 4)


def _enlarge(tap: socket.socket) -> None:
    """As large as wanted for root, for others as large as the machine's limit."""
    for forced, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
        try:
            tap.setsockopt(socket.SOL_SOCKET, forced, _BUFFER_BYTES)
        except PermissionError:
            tap.setsockopt(socket.SOL_SOCKET, plain, _BUFFER_BYTES)
