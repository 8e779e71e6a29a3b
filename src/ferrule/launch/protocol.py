"""Messages between a launcher and the supervisors of its hosts: tagged structs, a line of JSON each, decoded here.

An `Order` goes to a supervisor, a `Report` comes from it; the end of the stream is the end of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from ferrule.launch.facts import HostFacts

PROTOCOL = 2
GREETING = b"\nferrule supervisor\n"
"""Before it a login script may have printed anything."""

_MOST_BYTES = 64 << 20
"""Of a message: the environment of a thousand ranks has room."""

M = TypeVar("M")
Rank = Annotated[int, Meta(ge=0, lt=1 << 16)]
Seconds = Annotated[float, Meta(ge=0)]


class Message(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """Anything that is said."""


class Hello(Message, frozen=True):
    """The first order, answered by `Ready`. ``listen``: an address at which rank 0 will listen, empty where it is on
    another host; ``ports``: how many to keep free; ``env``: of the host; ``links``: whether to look at cables;
    ``silence``: after so many seconds without an order the launcher is gone."""

    protocol: int
    listen: str
    ports: Annotated[int, Meta(ge=0, lt=1 << 16)]
    env: dict[str, str]
    links: bool
    silence: Seconds | None


class RankCommand(msgspec.Struct, frozen=True):
    """``argv``: a None in it is the Python of the host."""

    rank: Rank
    argv: tuple[str | None, ...]
    env: dict[str, str]


class Start(Message, frozen=True):
    """Start the ranks of this host. ``defaults``: variables that the host's own go before; ``files``: texts that ranks
    may read, by the variable that names the file; ``own_path``: put the programs of the host's Python first."""

    cwd: str
    defaults: dict[str, str]
    files: dict[str, str]
    own_path: bool
    ranks: tuple[RankCommand, ...]


class Signal(Message, frozen=True):
    """For all ranks."""

    number: Annotated[int, Meta(ge=1, le=64)]


class Stop(Message, frozen=True):
    """SIGTERM for all ranks, and SIGKILL after ``grace`` seconds."""

    grace: Seconds


class Ping(Message, frozen=True):
    """The launcher lives."""


class Ready(Message, frozen=True, tag="hello"):
    """``ports``: those that are kept free. ``facts``: None where the protocol is another one."""

    protocol: int
    ports: tuple[int, ...] = ()
    facts: HostFacts | None = None


class Printed(Message, frozen=True):
    """``stream``: 1 for standard output, 2 for standard error."""

    rank: Rank
    stream: Annotated[int, Meta(ge=1, le=2)]
    data: bytes


class Exited(Message, frozen=True):
    """``code``: as in `subprocess`."""

    rank: Rank
    code: int


class Refused(Message, frozen=True):
    """No rank runs on this host, or will."""

    reason: str


Order = Hello | Start | Signal | Stop | Ping
Report = Ready | Printed | Exited | Refused


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message) + b"\n"


class Decoder(Generic[M]):
    """Puts messages together from what arrives. ``greeting``: skip everything before it."""

    def __init__(self, decoder: msgspec.json.Decoder[M], *, greeting: bool = False) -> None:
        self._decoder, self._waiting = decoder, greeting
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that are complete now. Raises `ValueError` for what is none."""
        self._buffer += data
        if self._waiting:
            begin = self._buffer.find(GREETING)
            if begin < 0:
                del self._buffer[: -len(GREETING)]
                return
            del self._buffer[: begin + len(GREETING)]
            self._waiting = False
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            yield self._decoder.decode(line)
        if len(self._buffer) > _MOST_BYTES:
            raise ValueError(f"a message has more than {_MOST_BYTES:,} bytes")


def orders() -> Decoder[Order]:
    """At the supervisor's end."""
    return Decoder(msgspec.json.Decoder(Order))


def reports() -> Decoder[Report]:
    """At the launcher's end."""
    return Decoder(msgspec.json.Decoder(Report), greeting=True)
