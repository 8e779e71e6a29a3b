"""The configuration spaces of an emulated USB4 host router. Pure: words in, words out, and what a write brings about.

USB4 specification 1.0, "Configuration Layer" and "Lane Adapter". A router with n ports has lane adapters 1 and 2, 3 and
4, ..., and behind them the host interface adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.lab.usb4.packets import Space

ROUTER_WORDS, ADAPTER_WORDS = 64, 128
LANE_HOPS = 48
"""HopIDs of a lane adapter, 0 to 47; paths of the driver begin at 8."""

_TMU, _LANE, _PORT, _HOST = 0x20, 0x10, 0x20, 0x10  # where capabilities begin
_TYPE_LANE, _TYPE_HOST_INTERFACE = 1, 2
_BUFFERS, _BUFFERS_BONDED, _CONTROL_CREDITS = 60, 120, 2
_GEN2, _GEN3 = 0x8, 0x4
_BUFFER_PARAMETERS = {1: 14, 2: 1, 3: 18, 4: 14, 5: 14}
"""USB4 specification, "Buffer Allocation Request": USB3, DP auxiliary, DP main, PCIe, host interface."""

_BUFFER_ALLOCATION = 0x33
_ENABLED, _OPERATION_VALID, _NOT_SUPPORTED = 1 << 31, 1 << 31, 1 << 30
_LANE_DISABLE, _LANE_BONDING = 1 << 14, 1 << 15
_PORT_RESET = 1
_SIDEBAND_PENDING, _SIDEBAND_NO_RESPONSE = 1 << 31, 1 << 25
_PATH_VALID, _INGRESS_FLOW_CONTROL = 1 << 31, 1 << 24

DISABLED, TRAINING, UP, UNPLUGGED = 0, 1, 2, 7


class BadAccess(Exception):
    """An address in no configuration space. ``adapter``: that there is none such."""

    def __init__(self, adapter: bool) -> None:
        super().__init__()
        self.adapter = adapter


@dataclass(frozen=True)
class Hop:
    """An entry of a path: where what comes with a HopID goes on."""

    next_hop: int
    out_adapter: int
    credits: int
    waits_for_credits: bool


class Router:
    """``ports``: USB4 ports, two lane adapters each; ``hops``: rings of its host interface."""

    def __init__(self, ids: tuple[int, int], unique_id: int, ports: int, hops: int) -> None:
        self.ports = ports
        self._ids = ids
        self._unique_id = unique_id
        self._hops = hops
        self.reset()

    @property
    def host_adapter(self) -> int:
        return 2 * self.ports + 1

    def lane(self, port: int, second: bool = False) -> int:
        """The adapter of a port's first or second lane."""
        return 2 * port + 1 + second

    def port_of(self, adapter: int) -> int | None:
        """The port whose first lane this adapter is; packets are routed by that."""
        return (adapter - 1) // 2 if adapter % 2 and 0 < adapter < self.host_adapter else None

    def reset(self) -> None:
        vendor, device = self._ids
        identity = vendor | device << 16
        router = [0] * ROUTER_WORDS
        router[0] = identity
        router[1] = _TMU | self.host_adapter << 8 | self.host_adapter << 14 | 1 << 24
        router[4] = 0x20 << 24  # USB4 version 1
        router[6] = 1 << 25 | 1 << 24 | 1  # configuration, router and sleep ready
        router[7], router[8] = self._unique_id & 0xFFFFFFFF, self._unique_id >> 32
        router[_TMU] = 0x03 << 8 | 1 << 30
        self._router = router
        self._adapters: list[list[int]] = []
        self._paths: list[list[int]] = []
        for number in range(self.host_adapter + 1):
            words = [0] * ADAPTER_WORDS
            words[0], words[3] = identity, number << 20
            hops = 1
            if 0 < number < self.host_adapter:
                hops = LANE_HOPS
                self._make_lane(words, first=number % 2 == 1)
            elif number == self.host_adapter:
                hops = self._hops
                words[1], words[2] = _HOST, _TYPE_HOST_INTERFACE | 0x20 << 24
                words[_HOST] = 0x04 << 8
                words[4] = _BUFFERS << 20
            words[5] = (hops - 1) | (hops - 1) << 11
            self._adapters.append(words)
            self._paths.append([0] * (2 * hops))
        for port in range(self.ports):
            self._paths[self.lane(port)][0] = _CONTROL_CREDITS << 17
            self.set_link(port, UNPLUGGED, UNPLUGGED, gbps=20, width=1)

    @staticmethod
    def _make_lane(words: list[int], *, first: bool) -> None:
        words[1], words[2] = _LANE, _TYPE_LANE | 0x20 << 24
        words[4] = _BUFFERS << 20
        words[_LANE] = (_PORT if first else 0) | 0x01 << 8 | 0xC << 16 | 0x3 << 20  # 10 and 20 Gb/s; one or two lanes
        words[_LANE + 1] = 0xC | 0x1 << 4
        if first:
            words[_PORT] = 0x06 << 8 | 0x16 << 16

    @property
    def enabled(self) -> bool:
        """Whether a connection manager has taken it, and wants to be told of what is plugged in."""
        return bool(self._router[3] & _ENABLED)

    def wants_bonding(self, port: int) -> bool:
        """Whether both lanes are told to become one link."""
        lanes = [self._adapters[self.lane(port, second)][_LANE + 1] for second in (False, True)]
        return all(lane >> 4 & 3 == 3 and not lane & _LANE_DISABLE for lane in lanes)

    def starts_bonding(self, port: int) -> bool:
        return bool(self._adapters[self.lane(port)][_LANE + 1] & _LANE_BONDING)

    def lane_disabled(self, port: int) -> bool:
        """Whether the second lane was switched off."""
        return bool(self._adapters[self.lane(port, True)][_LANE + 1] & _LANE_DISABLE)

    def resetting(self, port: int) -> bool:
        return bool(self._adapters[self.lane(port)][_PORT + 0x13] & _PORT_RESET)

    def set_link(self, port: int, first: int, second: int, *, gbps: int, width: int) -> None:
        """``first``, ``second``: states of the lanes; ``width``: of the link, 1 or 2 lanes."""
        for lane, state in ((False, first), (True, second)):
            words = self._adapters[self.lane(port, lane)]
            speed = _GEN3 if gbps == 20 else _GEN2
            words[_LANE + 1] = words[_LANE + 1] & 0xFFFF | speed << 16 | width << 20 | state << 26
            words[4] = words[4] & 0x000FFFFF | (_BUFFERS_BONDED if width == 2 and not lane else _BUFFERS) << 20

    def hop(self, adapter: int, number: int) -> Hop | None:
        """Next hop of frames that come to this adapter with this HopID; None if no path is set up."""
        words = self._paths[adapter][2 * number : 2 * number + 2]
        if len(words) < 2 or not words[0] & _PATH_VALID:
            return None
        return Hop(
            words[0] & 0x7FF, words[0] >> 11 & 0x3F, words[0] >> 17 & 0x7F, bool(words[1] & _INGRESS_FLOW_CONTROL)
        )

    def read(self, space: int, adapter: int, offset: int, count: int) -> tuple[int, ...]:
        """Raises `BadAccess`."""
        words = self._words(space, adapter)
        if not 0 < count <= 60 or offset + count > len(words):
            raise BadAccess(False)
        return tuple(words[offset : offset + count])

    def write(self, space: int, adapter: int, offset: int, data: Sequence[int]) -> bool:
        """Whether links or paths may have changed by it, or a connection manager took the router.

        Raises `BadAccess`, and then nothing was written.
        """
        words = self._words(space, adapter)
        if not data or offset + len(data) > len(words):
            raise BadAccess(False)
        if space == Space.ROUTER:
            return self._write_router(offset, data)
        if space == Space.PATH:
            words[offset : offset + len(data)] = data
            return True
        if space == Space.ADAPTER and adapter:
            self._write_adapter(adapter, words, offset, data)
            return adapter < self.host_adapter
        return False

    def _words(self, space: int, adapter: int) -> list[int]:
        if space == Space.ROUTER:
            return self._router
        if adapter >= len(self._adapters):
            raise BadAccess(True)
        if space == Space.ADAPTER:
            return self._adapters[adapter]
        if space == Space.PATH:  # also of second lanes, whose paths mean nothing: kernels up to 6.12 clear them
            return self._paths[adapter]
        raise BadAccess(False)

    def _write_router(self, offset: int, data: Sequence[int]) -> bool:
        was = self.enabled
        for at, value in enumerate(data, offset):
            if at == 1:
                fixed = 0x000FFFFF | 0xFF << 24
                self._router[1] = self._router[1] & fixed | value & ~fixed & 0xFFFFFFFF
            elif at == 4:
                self._router[4] = self._router[4] & 0xFF000000 | value & 0x00FFFFFF
            elif at == 0x1A and value & _OPERATION_VALID:
                self._operate(value & 0xFFFF)
            elif at not in (0, 6, 7, 8, _TMU):
                self._router[at] = value
        return self.enabled and not was

    def _operate(self, code: int) -> None:
        """A router operation: done at once."""
        self._router[0x1A] = code
        if code != _BUFFER_ALLOCATION:
            self._router[0x1A] |= _NOT_SUPPORTED
            return
        self._router[0x19] = len(_BUFFER_PARAMETERS)
        for at, (index, value) in enumerate(_BUFFER_PARAMETERS.items(), 9):
            self._router[at] = index | value << 16

    def _write_adapter(self, adapter: int, words: list[int], offset: int, data: Sequence[int]) -> None:
        is_lane = adapter < self.host_adapter
        for at, value in enumerate(data, offset):
            if at == 4:
                words[4] = words[4] & 0x3FF00000 | value & ~0x3FF00000 & 0xFFFFFFFF
            elif at == 5:
                words[5] = words[5] & 0x003FFFFF | value & ~0x003FFFFF & 0xFFFFFFFF
            elif is_lane and at == _LANE + 1:
                words[at] = words[at] & 0xFFFF0000 | value & 0xFFFF
            elif is_lane and at == _PORT + 1 and value & _SIDEBAND_PENDING:
                words[at] = value & ~_SIDEBAND_PENDING | _SIDEBAND_NO_RESPONSE  # there are no retimers
            elif at > 3 and at not in (_LANE, _PORT):
                words[at] = value
