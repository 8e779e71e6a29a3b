"""Measure every link between two hosts, one after the other, and then all at once."""

from __future__ import annotations

import dataclasses
import functools
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from ferrule.errors import LinkError
from ferrule.fabric.join.addresses import Interface, pairings
from ferrule.links import Bandwidth, Fault, LinkEnd, MeasuredLink, MeasuredPair, both_ways
from ferrule.probe.ends import AnswerT, End
from ferrule.probe.orders import (
    Device,
    Direction,
    Flow,
    Knock,
    Knocked,
    Latencies,
    Listen,
    Listening,
    Measure,
    Rates,
    TimeMessages,
    TimeStreams,
    Transport,
)

SIZES = (64, 512, 4096, 32768, 262144, 1 << 20)
_ETHERNET_BYTES, _GAPS_BYTES = 14, 24
"""Bytes beside a packet: a frame's header; and, on a real Ethernet cable, preamble, checksum and gap."""
_TUNNEL_FRAME_BYTES, _TUNNEL_HEADER_BYTES = 4084, 12
"""thunderbolt-net cuts packets into frames of 4 KiB with a header each (drivers/net/thunderbolt in Linux)."""
_HIDDEN = 1.2
"""Of both ways together: while other programs had the processors, 0.6 came out as up to so much."""
_ROUND_TRIPS = 15
"""TCP needs about so many to find its speed."""
_MOST_WARM_SECONDS = 1.5
_KNOCK_SECONDS = 1.3
_SPARE_SECONDS = 6.0
_PAIRING_SECONDS = 10.0
"""For the ends to agree on a queue pair."""
_SIZE_SECONDS = 2.0
"""For each size of messages at most: also a slow link is measured, with fewer rounds."""


@dataclass(frozen=True)
class Effort:
    """Effort of a probe, as times: ``message`` seconds for each of ``sizes``, ``stream`` for each of ``streams``, after
    ``warm``.

    ``looks``: how often streams are measured in all where the first time says that something is wrong.
    """

    message: float = 0.08
    stream: float = 0.24
    warm: float = 0.1
    streams: tuple[int, ...] = (1, 2, 4)
    sizes: tuple[int, ...] = SIZES
    looks: int = 3

    @property
    def of_rdma(self) -> Effort:
        """One queue pair each way fills a cable, and some devices have few."""
        return dataclasses.replace(self, streams=(1,))


QUICK = Effort(message=0.03, stream=0.12, warm=0.05, streams=(1,), looks=1)


@dataclass(frozen=True)
class _Pairing:
    """Two interfaces that should reach each other; ``number``: of the second host's listening socket.

    ``guessed``: by their link-local addresses alone, so they may well be on different cables.
    """

    number: int
    first: Interface
    second: Interface
    port: int

    @property
    def guessed(self) -> bool:
        return self.first.ip.is_link_local

    def flow(self, direction: Direction) -> Flow:
        return Flow(self.number, self.second.address, self.port, self.first.address, self.first.name, direction)


def probe_pair(
    first: End,
    second: End,
    effort: Effort,
    say: Callable[[str], None],
    *,
    speeds: Mapping[str, float] | None = None,
) -> MeasuredPair:
    """Both ends must have been started with the same key. ``speeds``: bits per second of the cable at an interface of
    the first end, where it is known better than the system tells. Raises `LinkError` when an end is lost.
    """
    pairs = pairings(first.interfaces, second.interfaces)
    second.order(Listen(tuple((face.address, face.name) for _, face in pairs)))
    ports = second.answer(_SPARE_SECONDS, Listening).ports
    todo = [_Pairing(number, *faces, port) for number, (faces, port) in enumerate(zip(pairs, ports, strict=True))]
    links = []
    well = []
    for pairing in todo:
        say(f"{first.name} {pairing.first.name} ↔ {second.name} {pairing.second.name}")
        link = _Run((first, second), pairing, effort, speeds or {}).link()
        if link is None:
            continue
        links.append(link)
        if link.fault:
            continue
        well.append(pairing)
        if first.rdma.get(pairing.first.name) and second.rdma.get(pairing.second.name):
            say(f"{link.name}, RDMA")
            rdma = _Run((first, second), pairing, effort.of_rdma, speeds or {}, "verbs").link()
            links += [] if rdma is None else [rdma]
    together = None
    if len(well) > 1:
        say(f"{first.name} ↔ {second.name}, {len(well)} links at once")
        slowest = max(link.latency[0].median for link in links if link.latency)
        # Each has just been measured alone; what now goes wrong was told there, or is a chance of this moment.
        with suppress(LinkError):
            together = _bandwidth(first, second, well, 1, effort, slowest)
    return MeasuredPair((first.name, second.name), time.time(), tuple(links), together)


@dataclass(frozen=True)
class _Run:
    """One link, by one transport."""

    ends: tuple[End, End]
    pairing: _Pairing
    effort: Effort
    speeds: Mapping[str, float]
    transport: Transport = "tcp"

    def link(self) -> MeasuredLink | None:
        """None: a guess that was wrong."""
        first, second = self.ends
        pairing = self.pairing
        faces = pairing.first, pairing.second
        link = MeasuredLink(
            ends=(self._end(first, faces[0]), self._end(second, faces[1])),
            at=time.time(),
            transport=self.transport,
            mtu=min(face.mtu for face in faces),
        )
        try:
            answers = self._latency()
        except LinkError as error:
            return None if pairing.guessed else self._failed(link, error)
        latency = answers[0].latency
        framing = _framing(link, answers[0].mss) if self.transport == "tcp" else 1.0
        link = dataclasses.replace(link, latency=latency, framing=framing)
        found: list[Bandwidth] = []
        settled = False
        for streams in self.effort.streams:
            measure = functools.partial(
                _bandwidth, first, second, [pairing], streams, self.effort, latency[0].median, self.transport
            )
            try:
                one = confirmed(measure, 1 if settled else self.effort.looks)
            except LinkError as error:
                return self._failed(link, error)
            settled = settled or in_doubt(one)
            found.append(one)
            link = dataclasses.replace(link, bandwidth=tuple(found))
            if not one.forth or not one.back:
                return self._failed(link, LinkError("nothing arrived"))
        return link

    def _failed(self, link: MeasuredLink, error: LinkError) -> MeasuredLink:
        """With why, as far as that can be found out. By RDMA only what was said: over TCP the link is well."""
        if self.transport != "tcp":
            return dataclasses.replace(link, fault="no-rdma", detail=str(error))
        fault, detail = self._knock()
        return dataclasses.replace(link, fault=fault, detail=detail or str(error))

    def _latency(self) -> list[Latencies]:
        """One connection for what the ends say to each other, and one for the messages."""
        lends = self.transport == "tcp" and all(end.here for end in self.ends)
        order = TimeMessages(
            epoch=secrets.token_bytes(16),
            flows=(self.pairing.flow("forth"),) * 2,
            seconds=self.effort.message,
            timeout=len(self.effort.sizes) * _SIZE_SECONDS + _pairing_seconds(self.transport),
            transport=self.transport,
            sizes=self.effort.sizes,
            lend=f"{tempfile.gettempdir()}/ferrule-probe-{secrets.token_hex(8)}" if lends else "",
        )
        return _measure(*self.ends, order, Latencies)

    def _end(self, end: End, face: Interface) -> LinkEnd:
        device = end.devices.get(face.name, Device("", None))
        identity = f"{end.identity} {face.identity}" if end.identity and face.identity else ""
        speed = self.speeds.get(self.pairing.first.name, device.speed)
        return LinkEnd(end.name, face.name, face.address, identity, end.kernel, device.kind, speed)

    def _knock(self) -> tuple[Fault, str]:
        """Find why nothing came through: let both ends knock at the other, and count what arrives."""
        first, second = self.ends
        mine, theirs = self.pairing.first, self.pairing.second
        knocks = ((first, mine, theirs), (second, theirs, mine))
        for end, own, other in knocks:
            end.order(Knock(other.address, self.pairing.port, own.address, own.name, _KNOCK_SECONDS))
        answers = [end.answer(_KNOCK_SECONDS + _SPARE_SECONDS, Knocked) for end, _, _ in knocks]
        frames = [answer.frames for answer in answers]
        detail = "frames received while both ends knocked for " + (
            f"{_KNOCK_SECONDS:g} s: " + ", ".join(f"{frames[n]} at {knocks[n][0].name}" for n in range(2))
        )
        if any(answer.answered for answer in answers):
            return "large", "connections open, but a measurement over them did not end"
        if not any(frames):
            return "stall", detail
        return ("blocked" if all(frames) else "one-way"), detail


def in_doubt(one: Bandwidth) -> bool:
    """Nothing is said against a cable after a single look: what else a machine does looks alike now and then."""
    verdict = both_ways(one)
    return verdict in ("shared", "collapse") or (verdict == "limited" and one.together < _HIDDEN)


def confirmed(measure: Callable[[], Bandwidth], looks: int = 3) -> Bandwidth:
    """Measurement, repeated in doubt: where it says that both ways at once are too slow, the middle one of so many."""
    first = measure()
    if not in_doubt(first):
        return first
    more = (measure() for _ in range(looks - 1))
    return sorted((first, *more), key=lambda one: one.together)[looks // 2]


def _bandwidth(
    first: End,
    second: End,
    pairs: Sequence[_Pairing],
    streams: int,
    effort: Effort,
    latency: float,
    transport: Transport = "tcp",
) -> Bandwidth:
    """Goodput forth, back, and both at once; all of ``pairs`` together."""
    warm = max(effort.warm, min(_MOST_WARM_SECONDS, _ROUND_TRIPS * 2 * latency))
    seconds = effort.stream + warm
    rates = []
    loads: tuple[tuple[Direction, ...], ...] = (("forth",), ("back",), ("forth", "back"))
    for directions in loads:
        order = TimeStreams(
            epoch=secrets.token_bytes(16),
            flows=tuple(
                pairing.flow(direction) for pairing in pairs for direction in directions for _ in range(streams)
            ),
            seconds=seconds,
            timeout=seconds + _SPARE_SECONDS / 2 + _pairing_seconds(transport),
            transport=transport,
            warm=warm,
        )
        answers = _measure(first, second, order, Rates)
        busy = max(answer.busy for answer in answers)  # what counts is that of the last run, both ways
        for direction in directions:
            # What arrived: forth at the second end, back at the first.
            arrived = answers[1 if direction == "forth" else 0].rates
            rates.append(
                sum(rate for flow, rate in zip(order.flows, arrived, strict=True) if flow.direction == direction)
            )
    forth, back, both_forth, both_back = rates
    return Bandwidth(streams, forth, back, both_forth, both_back, busy)


def _pairing_seconds(transport: Transport) -> float:
    return _PAIRING_SECONDS if transport == "verbs" else 0.0


def _measure(first: End, second: End, order: Measure, kind: type[AnswerT]) -> list[AnswerT]:
    """Both ends do it at the same time. Raises `LinkError` if either says that it failed, after both have ended."""
    for end, dials in ((second, False), (first, True)):
        end.order(structs.replace(order, dials=dials))
    answers: list[AnswerT] = []
    problem: LinkError | None = None
    for end in (first, second):
        try:
            answers.append(end.answer(order.timeout + _SPARE_SECONDS, kind))
        except LinkError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return answers


def _framing(link: MeasuredLink, mss: int) -> float:
    """Bytes on the wire for each byte of goodput, in full packets."""
    if not 0 < mss < link.mtu:
        return 1.0
    kinds = {end.kind for end in link.ends}
    beside = _ETHERNET_BYTES
    if "thunderbolt" in kinds:
        beside += _TUNNEL_HEADER_BYTES * -(-link.mtu // _TUNNEL_FRAME_BYTES)
    elif "ethernet" in kinds:
        beside += _GAPS_BYTES
    return (link.mtu + beside) / mss
