"""One handshake for ranks and agents: both ends of a connection prove to each other that they hold the cluster's key.

    hello      client -> server   who it is and what it wants, a random number
    challenge  server -> client   another random number (or a refusal)
    proof      client -> server   HMAC-SHA256(key, "client" + hello + challenge + binding)
    verdict    server -> client   HMAC-SHA256(key, "server" + hello + challenge + binding) (or a refusal)

Both random numbers and the roles are under both MACs, so a recorded or reflected proof is worth nothing. Every
message has a fixed size: nothing that a stranger sends makes us wait for, or keep, more than some hundred bytes.

Where both ends ask for it, TLS begins between challenge and proof (`ferrule.secure.tls`). The *binding* is then the
SHA-256 of the server's certificate (``tls-server-end-point`` of RFC 5929): a man in the middle has another certificate,
so that neither end accepts the other's proof.

The exchanges are generators that yield what they wait for, so that one thread can hold many of them at once: a number
of bytes to read (they are sent these), or bytes to write. Each `Wire` says what else a hello carries.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Protocol, TypeVar

from ferrule import __version__

MAC_BYTES = 32
_NONCE_BYTES = 32

T = TypeVar("T")
Exchange = Generator[int | bytes, Any, T]
"""Yields a number of bytes to read (and is sent them), or bytes to write (and is sent ``b""``)."""


class Status(IntEnum):
    """Status of a reply."""

    WELCOME = 0
    WRONG_KEY = 1
    REFUSED = 2
    ELSEWHERE = 3
    """The target is another rank: ask for a relay."""
    ALREADY = 4
    """The same process is let in by another connection at this moment."""
    OTHER_CLUSTER = 5


class Stranger(Exception):
    """The other end does not speak our protocol, or is better served elsewhere: it gets no answer."""


class WrongKey(Exception):
    """The other end did not prove that it knows the key."""


class Line(Protocol):
    """Byte stream of a handshake once TLS has begun, or does not begin. ``binding``: see above."""

    binding: bytes

    def read(self, count: int) -> Exchange[bytes]: ...

    def write(self, data: bytes) -> Exchange[None]: ...


class Plain:
    """No TLS: bytes go as they are."""

    binding = b""

    def read(self, count: int) -> Exchange[bytes]:
        data: bytes = yield count
        return data

    def write(self, data: bytes) -> Exchange[None]:
        yield data


Opening = Callable[[], Exchange[Line]]
"""Begins TLS on a connection, at the client's or the server's end."""


@dataclass(frozen=True)
class Hello:
    """A client's first message. ``kind``: what the connection is for; ``fields``: as the protocol has them.

    ``encrypt``: whether the client asks for TLS, where the protocol leaves that to it.
    """

    raw: bytes
    protocol: int
    version: str
    kind: int
    encrypt: bool
    fields: tuple[Any, ...]


@dataclass(frozen=True)
class Reply:
    """A server's message. ``ours``: whether what answers is Ferrule at all; else nothing else of it means anything."""

    raw: bytes
    ours: bool
    protocol: int
    version: str
    status: int
    value: bytes
    text: str


@dataclass(frozen=True)
class Wire:
    """Wire format of one protocol's messages. ``number``: raised whenever what follows the handshake changes.

    ``label``: keeps its MACs apart from those of other protocols; ``fields``: of a hello, in `struct`'s letters;
    ``text_bytes``: room for a refusal's reason.
    """

    magic: bytes
    number: int
    label: bytes
    fields: str
    text_bytes: int

    # The first three fields must never move: they are how two versions recognise each other.
    @cached_property
    def hello(self) -> struct.Struct:
        return struct.Struct(f"<8s H 24s B B {self.fields} {_NONCE_BYTES}s")

    @cached_property
    def reply(self) -> struct.Struct:
        return struct.Struct(f"<8s H 24s B x 32s {self.text_bytes}s")

    def pack_hello(self, kind: int, *fields: Any, encrypt: bool = False) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return self.hello.pack(self.magic, self.number, _own_version(), kind, encrypt, *fields, nonce)

    def parse_hello(self, raw: bytes) -> Hello:
        """Raises `Stranger`."""
        magic, number, version, kind, encrypt, *fields, _ = self.hello.unpack(raw)
        if magic != self.magic or not version.rstrip(b"\0").isascii():
            raise Stranger
        return Hello(raw, number, harmless(version), kind, bool(encrypt), tuple(fields))

    def pack_reply(self, status: Status, value: bytes = b"", text: str = "") -> bytes:
        reason = text.encode()[: self.text_bytes]
        return self.reply.pack(self.magic, self.number, _own_version(), status, value, reason)

    def parse_reply(self, raw: bytes) -> Reply:
        magic, number, version, status, value, text = self.reply.unpack(raw)
        return Reply(raw, magic == self.magic, number, harmless(version), status, value, harmless(text))


@dataclass(frozen=True)
class Proof:
    """State that both ends share once the client has proved itself: the handshake so far."""

    wire: Wire
    key: bytes
    said: bytes
    line: Line

    def mac(self, label: bytes) -> bytes:
        return hmac.new(self.key, self.wire.label + label + b"\0" + self.said, hashlib.sha256).digest()

    def session_key(self) -> bytes:
        """A key of this connection alone."""
        return self.mac(b"session")

    def welcome(self) -> Exchange[None]:
        """At the server: the verdict that proves it, too."""
        return self.refuse(Status.WELCOME, self.mac(b"server"))

    def refuse(self, status: Status, value: bytes = b"", text: str = "") -> Exchange[None]:
        """At the server: the verdict that the client is not let in."""
        return self.line.write(self.wire.pack_reply(status, value, text))


def client_steps(
    wire: Wire, key: bytes, hello: bytes, check: Callable[[Reply], None], opening: Opening | None = None
) -> Exchange[Proof]:
    """The client's side. ``check`` raises what a reply that is no welcome means. Raises `WrongKey`."""
    yield hello
    challenge = wire.parse_reply((yield wire.reply.size))
    check(challenge)
    line: Line = Plain() if opening is None else (yield from opening())
    proof = Proof(wire, key, hello + challenge.raw + line.binding, line)
    yield from line.write(proof.mac(b"client"))
    verdict = wire.parse_reply((yield from line.read(wire.reply.size)))
    check(verdict)
    if not hmac.compare_digest(verdict.value, proof.mac(b"server")):
        raise WrongKey
    return proof


def hear_hello(wire: Wire) -> Exchange[Hello]:
    """The server's side, first part. Raises `Stranger`."""
    return wire.parse_hello((yield wire.hello.size))


def challenge_steps(wire: Wire, key: bytes, hello: Hello, opening: Opening | None = None) -> Exchange[Proof]:
    """The server's side, second part; it ends with `Proof.welcome` or `Proof.refuse`.

    Raises `WrongKey` where the client does not know the key, which it has been told then.
    """
    challenge = wire.pack_reply(Status.WELCOME, secrets.token_bytes(_NONCE_BYTES))
    yield challenge
    line: Line = Plain() if opening is None else (yield from opening())
    proof = Proof(wire, key, hello.raw + challenge + line.binding, line)
    if not hmac.compare_digest((yield from line.read(MAC_BYTES)), proof.mac(b"client")):
        yield from proof.refuse(Status.WRONG_KEY)
        raise WrongKey
    return proof


def _own_version() -> bytes:
    return __version__.encode()[:24]


def harmless(field: bytes) -> str:
    """A text from the other end, made harmless for terminals and logs."""
    text = field.rstrip(b"\0").decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
