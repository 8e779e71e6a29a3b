"""Orders to a host's agent, and its answers: tagged structs, one JSON object a line, decoded here only.

The first line is `Start`; each further one an order, which is answered by the kind of `Answer` that its docstring
names, or by `Failed`. A line has at most `LINE_LIMIT` bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from ferrule import __version__
from ferrule.errors import LinkError
from ferrule.fabric.join.addresses import Interface
from ferrule.links import Latency
from ferrule.probe.messages import MAX_BYTES

LINE_LIMIT = 1 << 20
"""Bytes of the longest line, either way."""
_MAX_FLOWS = 256

Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Epoch = Annotated[bytes, Meta(min_length=16, max_length=16)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Size = Annotated[int, Meta(ge=1, le=MAX_BYTES)]
Transport = Literal["tcp", "verbs"]
Direction = Literal["forth", "back"]
"""Forth is from the end that dials."""

_T = TypeVar("_T")


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="do"):
    """``seconds``: after which the agent ends in any case."""

    key: Key
    seconds: Annotated[float, Meta(gt=0)]


class Order(msgspec.Struct, frozen=True, tag_field="do", tag=str.lower):
    """Order to an agent."""


class Describe(Order, frozen=True):
    """Say who you are: `Description`."""


class Listen(Order, frozen=True):
    """On these addresses, each with its interface, and no others any more: `Listening`."""

    places: tuple[tuple[str, str], ...]


class Flow(msgspec.Struct, frozen=True):
    """One connection. ``listener``: the number of the listening socket at ``address`` and ``port``; ``source`` and
    ``interface``: of the end that dials."""

    listener: Annotated[int, Meta(ge=0)]
    address: str
    port: Port
    source: str
    interface: str
    direction: Direction


class Measure(Order, frozen=True, kw_only=True):
    """Connect once for each of the ``flows`` and time what goes over them. Both ends are told the same but ``dials``.

    With the transport ``verbs`` what is timed goes over a queue pair that a connection agrees on.
    """

    epoch: Epoch
    flows: Annotated[tuple[Flow, ...], Meta(min_length=1, max_length=_MAX_FLOWS)]
    seconds: Seconds
    timeout: Seconds
    transport: Transport
    dials: bool = False


class TimeMessages(Measure, frozen=True, kw_only=True):
    """On the second of two flows, for ``seconds`` each of the ``sizes`` in bytes: `Latencies`. ``lend``: the path at
    which the end that dials borrows the other one's socket; empty where it does not."""

    sizes: tuple[Size, ...]
    lend: str = ""


class TimeStreams(Measure, frozen=True, kw_only=True):
    """All at once for ``seconds``, of which the first ``warm`` do not count: `Rates`."""

    warm: Seconds


class Knock(Order, frozen=True):
    """Connect for ``seconds``, and count what arrives meanwhile: `Knocked`."""

    address: str
    port: Port
    source: str
    interface: str
    seconds: Seconds


class Answer(msgspec.Struct, frozen=True, tag_field="answer", tag=str.lower):
    """Answer to an order."""


class Device(msgspec.Struct, frozen=True):
    """A network interface. ``speed`` in bits per second, None where that is not known."""

    kind: str
    speed: float | None


class Description(Answer, frozen=True):
    """``interfaces``: with their addresses; ``rdma``: the RDMA devices of each, empty where the host has none at all;
    ``devices``: all interfaces by name."""

    host: str
    identity: str
    kernel: str
    version: str
    interfaces: tuple[Interface, ...]
    rdma: dict[str, tuple[str, ...]]
    devices: dict[str, Device]


class Listening(Answer, frozen=True):
    ports: tuple[Port, ...]


class Latencies(Answer, frozen=True):
    """``mss``: bytes of a TCP segment; ``latency``: of each size, at the end that dials."""

    mss: int
    latency: tuple[Latency, ...]


class Rates(Answer, frozen=True):
    """``rates``: goodput of each flow in bits/s that arrived here, 0 where this end sends; ``busy``: how busy this
    machine was meanwhile, from 0 to 1."""

    rates: tuple[float, ...]
    busy: float


class Knocked(Answer, frozen=True):
    """``frames``: how many the interface received."""

    answered: bool
    frames: int


class Failed(Answer, frozen=True):
    error: str


AnyOrder = Describe | Listen | TimeMessages | TimeStreams | Knock
AnyAnswer = Description | Listening | Latencies | Rates | Knocked | Failed

_starts = msgspec.json.Decoder(Start)
_orders: msgspec.json.Decoder[AnyOrder] = msgspec.json.Decoder(AnyOrder)
_answers: msgspec.json.Decoder[AnyAnswer] = msgspec.json.Decoder(AnyAnswer)


def encode(message: Start | Order | Answer) -> bytes:
    """Without the end of its line."""
    return msgspec.json.encode(message)


def decode_start(line: bytes) -> Start:
    """Raises `LinkError`, as the others do."""
    return _decode(_starts, line)


def decode_order(line: bytes) -> AnyOrder:
    return _decode(_orders, line)


def decode_answer(line: bytes) -> AnyAnswer:
    return _decode(_answers, line)


def _decode(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    try:
        if len(line) > LINE_LIMIT:
            raise msgspec.DecodeError(f"more than {LINE_LIMIT} bytes")
        return decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise LinkError(f"this is nothing that the probe of ferrule {__version__} says: {error}") from error
