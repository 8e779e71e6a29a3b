"""Two ends of a connection prove to each other that they hold the cluster's key.

The client says hello, the server answers with a challenge, the client proves itself, the server proves itself:

    hello      client -> server   who it is, whom it wants, which group, a random number
    challenge  server -> client   another random number (or a refusal)
    proof      client -> server   HMAC-SHA256(key, "client" + hello + challenge)
    verdict    server -> client   HMAC-SHA256(key, "server" + hello + challenge) (or a refusal)

Both random numbers and the roles are under both MACs, so a recorded or reflected proof is worth nothing. Every
message has a fixed size: nothing a stranger sends makes us wait for, or keep, more than some hundred bytes.
What follows on the connection is not encrypted; whoever can alter packets between the hosts can alter data.

The exchanges are generators that yield what they wait for, so that one server can hold many of them at once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum

from ferrule import __version__
from ferrule.errors import AuthError, RendezvousError

PROTOCOL = 1
"""Raised whenever the wire, the handshake or the layout of shared memory changes."""

_MAGIC = b"FERRULE\0"
# The first three fields must never move: they are how two versions recognise each other.
_HELLO = struct.Struct("<8s H 24s B x i i i 16s 32s")
_REPLY = struct.Struct("<8s H 24s B x 32s 192s")
MAC_BYTES = 32

Steps = Generator[int | bytes, bytes, "Session"]
"""Yields a number of bytes to read (and is sent them) or bytes to write (and is sent ``b""``)."""


class Role(IntEnum):
    """What a connection is for."""

    RENDEZVOUS = 1
    PEER = 2


class _Status(IntEnum):
    WELCOME = 0
    WRONG_KEY = 1
    REFUSED = 2


class Stranger(Exception):
    """Whoever connected does not speak our protocol; nothing it sent is of interest."""


@dataclass(frozen=True)
class Identity:
    """Who connects to whom. ``epoch``: 16 random bytes that name the group; zeros before there is one."""

    role: Role
    rank: int
    target: int
    world_size: int
    epoch: bytes = bytes(16)


@dataclass(frozen=True)
class Session:
    """An authenticated connection: who is at the other end, and a key for the messages that follow."""

    identity: Identity
    key: bytes


def connect_steps(key: bytes, identity: Identity) -> Steps:
    """The client's side. Raises `AuthError` or `RendezvousError`."""
    where = f"rank {identity.target}"
    hello = _HELLO.pack(
        _MAGIC,
        PROTOCOL,
        _version_bytes(),
        identity.role,
        identity.rank,
        identity.target,
        identity.world_size,
        identity.epoch,
        secrets.token_bytes(32),
    )
    yield hello
    challenge = yield _REPLY.size
    _check_reply(challenge, where)
    yield _mac(key, b"client", hello, challenge)
    verdict = yield _REPLY.size
    _check_reply(verdict, where)
    if not hmac.compare_digest(_REPLY.unpack(verdict)[4], _mac(key, b"server", hello, challenge)):
        raise AuthError(f"{where} has another cluster key; give every rank the same FERRULE_KEY")
    return Session(identity, _mac(key, b"session", hello, challenge))


def accept_steps(key: bytes, expected: Identity) -> Steps:
    """The server's side; ``expected.rank`` is not looked at, the rest must fit.

    Raises `Stranger`, `AuthError` (a peer with another key) or `RendezvousError` (another version or group).
    """
    hello = yield _HELLO.size
    magic, protocol, version, role, rank, target, world_size, epoch, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise Stranger
    if protocol != PROTOCOL:
        text = (
            f"rank {rank} runs ferrule {_text(version)} (protocol {protocol}), rank {expected.target} runs "
            f"ferrule {__version__} (protocol {PROTOCOL}); install the same version everywhere"
        )
        yield _reply(_Status.REFUSED, text=text)
        raise RendezvousError(text)
    challenge = _reply(_Status.WELCOME, secrets.token_bytes(32))
    yield challenge
    proof = yield MAC_BYTES
    if not hmac.compare_digest(proof, _mac(key, b"client", hello, challenge)):
        yield _reply(_Status.WRONG_KEY)
        raise AuthError(f"rank {rank} has another cluster key; give every rank the same FERRULE_KEY")
    problem = None
    if (target, world_size) != (expected.target, expected.world_size):
        problem = (
            f"rank {rank} looked for rank {target} of {world_size} but found rank {expected.target} of "
            f"{expected.world_size}; check FERRULE_WORLD_SIZE and FERRULE_ADDRESS"
        )
    elif not 0 <= rank < world_size or rank == target:
        problem = f"a peer calls itself rank {rank} of {world_size}"
    elif role != expected.role or epoch != expected.epoch:
        problem = f"rank {rank} belongs to another group"
    if problem is not None:
        yield _reply(_Status.REFUSED, text=problem)
        raise RendezvousError(problem)
    yield _reply(_Status.WELCOME, _mac(key, b"server", hello, challenge))
    identity = Identity(Role(role), rank, target, world_size, epoch)
    return Session(identity, _mac(key, b"session", hello, challenge))


def _check_reply(reply: bytes, where: str) -> None:
    magic, protocol, version, status, _, text = _REPLY.unpack(reply)
    if magic != _MAGIC:
        raise RendezvousError(f"what answers at the address of {where} is not Ferrule; check FERRULE_ADDRESS")
    if status == _Status.WRONG_KEY:
        raise AuthError(f"{where} refused our cluster key; give every rank the same FERRULE_KEY")
    if status != _Status.WELCOME:
        raise RendezvousError(_text(text))
    if protocol != PROTOCOL:
        raise RendezvousError(
            f"{where} runs ferrule {_text(version)} (protocol {protocol}), this rank runs ferrule {__version__} "
            f"(protocol {PROTOCOL}); install the same version everywhere"
        )


def _reply(status: _Status, value: bytes = bytes(32), text: str = "") -> bytes:
    return _REPLY.pack(_MAGIC, PROTOCOL, _version_bytes(), status, value, text.encode()[:192])


def _mac(key: bytes, label: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.new(key, b"ferrule " + label + b"\0" + hello + challenge, hashlib.sha256).digest()


def _version_bytes() -> bytes:
    return __version__.encode()[:24]


def _text(field: bytes) -> str:
    """A text from the other end, made harmless for terminals and logs."""
    text = field.rstrip(b"\0").decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in text)
