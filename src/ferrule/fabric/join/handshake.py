"""Two ends of a connection prove to each other that they hold the cluster's key.

The client says hello, the server answers with a challenge, the client proves itself, the server proves itself:

    hello      client -> server   who it is, whom it wants, which group, a random number
    challenge  server -> client   another random number (or a refusal)
    proof      client -> server   HMAC-SHA256(key, "client" + hello + challenge)
    verdict    server -> client   HMAC-SHA256(key, "server" + hello + challenge) (or a refusal)

Both random numbers and the roles are under both MACs, so a recorded or reflected proof is worth nothing. Every
message has a fixed size: nothing a stranger sends makes us wait for, or keep, more than some hundred bytes.
What follows on the connection is not encrypted; whoever can alter packets between the hosts can alter data.

The exchanges are generators that yield what they wait for, so that one thread can hold many of them at once.

Where two ranks share no link, the client first proves itself in the same way to a rank between them (as a
`Role.RELAY`), which opens the way to the target and from then on only copies bytes; then both ends shake hands through
it as above, so that the rank between cannot pass for either.
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

PROTOCOL = 3
"""Raised whenever the wire, the handshake or the layout of shared memory changes."""

_MAGIC = b"FERRULE\0"
# The first three fields must never move: they are how two versions recognise each other.
_HELLO = struct.Struct("<8s H 24s B x i i i i 16s 32s")
_REPLY = struct.Struct("<8s H 24s B x 32s 192s")
_RANK = struct.Struct("<i")
MAC_BYTES = 32


class Role(IntEnum):
    """What a connection is for."""

    RENDEZVOUS = 1
    """To rank 0 of a group that is being made: how its ranks agree."""
    COLLECTIVES = 2
    MESSAGES = 3
    CONTROL = 4
    """Of the heartbeat."""
    RELAY = 5
    """Asks to be passed on to the target."""
    REFORM = 6
    """Of survivors that make a new group."""


_ROLES = frozenset(int(role) for role in Role)


class Status(IntEnum):
    WELCOME = 0
    WRONG_KEY = 1
    REFUSED = 2
    ELSEWHERE = 3
    """The target is another rank: ask for a relay."""
    ALREADY = 4
    """The same process is let in by another way at this moment."""


class Stranger(Exception):
    """Whoever connected is of no interest: it does not speak our protocol, or is better served elsewhere."""


class Refused(RendezvousError):
    """Whoever answers does not let us in, and will not."""


class Elsewhere(RendezvousError):
    """``rank`` answers, which is not the target, but would relay to it."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


@dataclass(frozen=True)
class Identity:
    """Who connects to whom. ``epoch``: 16 random bytes that name the group; zeros before there is one.

    ``rail``: the number of the rail, where the pair of ranks has several.
    """

    role: Role
    rank: int
    target: int
    world_size: int
    epoch: bytes = bytes(16)
    rail: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why somebody who proved to know the key is not let in. ``rank``: who answers, where that is somebody else."""

    text: str
    status: Status = Status.REFUSED
    rank: int = -1


@dataclass(frozen=True)
class Session:
    """An authenticated connection: who is at the other end, and a key for the messages that follow."""

    identity: Identity
    key: bytes


Steps = Generator[int | bytes | Identity, bytes | Refusal, Session]
"""Yields a number of bytes to read (and is sent them), bytes to write (and is sent ``b""``), or, at the server, who it
is that proved to know the key (and is sent ``b""`` for welcome, or a `Refusal`)."""


def connect_steps(key: bytes, identity: Identity) -> Steps:
    """The client's side. Raises `AuthError` or `RendezvousError` (`Elsewhere` where somebody else answers)."""
    where = "the rank between" if identity.role == Role.RELAY else f"rank {identity.target}"
    hello = _HELLO.pack(
        _MAGIC,
        PROTOCOL,
        _version_bytes(),
        identity.role,
        identity.rank,
        identity.target,
        identity.world_size,
        identity.rail,
        identity.epoch,
        secrets.token_bytes(32),
    )
    yield hello
    challenge = _bytes((yield _REPLY.size))
    _check_reply(challenge, where)
    yield _mac(key, b"client", hello, challenge)
    verdict = _bytes((yield _REPLY.size))
    _check_reply(verdict, where)
    if not hmac.compare_digest(_REPLY.unpack(verdict)[4], _mac(key, b"server", hello, challenge)):
        raise AuthError(f"{where} has another cluster key; give every rank the same FERRULE_KEY")
    return Session(identity, _mac(key, b"session", hello, challenge))


def relayed_steps(key: bytes, request: Identity, identity: Identity) -> Steps:
    """The client's side where another rank answers: ask it to relay (``request``), then go on with the target."""
    yield from opening_steps(key, request)
    return (yield from connect_steps(key, identity))


def opening_steps(key: bytes, request: Identity) -> Steps:
    """Ask the rank that answers to relay, and wait until it has opened the way: what follows comes from the target."""
    session = yield from connect_steps(key, request)
    word = _bytes((yield _REPLY.size))
    try:
        _check_reply(word, "the rank between")
    except Refused as error:
        raise RendezvousError(str(error)) from None  # another rank may know a way
    if not hmac.compare_digest(_REPLY.unpack(word)[4], _mac(session.key, b"opened", b"", b"")):
        raise AuthError("a message of the rank between was altered on its way")
    return session


def silent_steps(identity: Identity) -> Steps:
    """Nothing is said: others will shake hands over the connection."""
    yield from ()
    return Session(identity, b"")


def opened(session: Session) -> bytes:
    """A relay's word to its client that the way is open: what follows comes from the target."""
    return _reply(Status.WELCOME, _mac(session.key, b"opened", b"", b""))


def not_opened(text: str) -> bytes:
    """A relay's word that there is no way."""
    return _reply(Status.REFUSED, text=text)


def accept_steps(key: bytes, rank: int) -> Steps:
    """The side of the server, which is ``rank`` (for the words of an error; whom to let in is decided outside).

    Raises `Stranger`, `AuthError` (a peer with another key) or `RendezvousError` (another version, or refused).
    """
    hello = _bytes((yield _HELLO.size))
    magic, protocol, version, role, peer, target, world_size, rail, epoch, _ = _HELLO.unpack(hello)
    if magic != _MAGIC or peer < 0 or not version.rstrip(b"\0").isascii():
        raise Stranger
    if protocol != PROTOCOL:
        text = (
            f"rank {peer} runs ferrule {_text(version)} (protocol {protocol}), rank {rank} runs "
            f"ferrule {__version__} (protocol {PROTOCOL}); install the same version everywhere"
        )
        yield _reply(Status.REFUSED, text=text)
        raise Refused(text)
    challenge = _reply(Status.WELCOME, secrets.token_bytes(32))
    yield challenge
    proof = _bytes((yield MAC_BYTES))
    if not hmac.compare_digest(proof, _mac(key, b"client", hello, challenge)):
        yield _reply(Status.WRONG_KEY)
        raise AuthError(f"rank {peer} has another cluster key; give every rank the same FERRULE_KEY")
    if role not in _ROLES:
        raise Stranger
    identity = Identity(Role(role), peer, target, world_size, epoch, rail)
    refusal = yield identity
    if isinstance(refusal, Refusal):
        yield _reply(refusal.status, _RANK.pack(refusal.rank).ljust(32, b"\0"), refusal.text)
        raise Refused(refusal.text) if refusal.status == Status.REFUSED else Stranger
    yield _reply(Status.WELCOME, _mac(key, b"server", hello, challenge))
    return Session(identity, _mac(key, b"session", hello, challenge))


def _check_reply(reply: bytes, where: str) -> None:
    magic, protocol, version, status, value, text = _REPLY.unpack(reply)
    if magic != _MAGIC:
        raise RendezvousError(f"what answers at the address of {where} is not Ferrule; check FERRULE_ADDRESS")
    if status == Status.WRONG_KEY:
        raise AuthError(f"{where} refused our cluster key; give every rank the same FERRULE_KEY")
    if status == Status.ELSEWHERE:
        raise Elsewhere(_text(text), *_RANK.unpack_from(value))
    if status == Status.REFUSED:
        raise Refused(_text(text))
    if status != Status.WELCOME:
        raise RendezvousError(_text(text))
    if protocol != PROTOCOL:
        raise RendezvousError(
            f"{where} runs ferrule {_text(version)} (protocol {protocol}), this rank runs ferrule {__version__} "
            f"(protocol {PROTOCOL}); install the same version everywhere"
        )


def _reply(status: Status, value: bytes = bytes(32), text: str = "") -> bytes:
    return _REPLY.pack(_MAGIC, PROTOCOL, _version_bytes(), status, value, text.encode()[:192])


def _mac(key: bytes, label: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.new(key, b"ferrule " + label + b"\0" + hello + challenge, hashlib.sha256).digest()


def _bytes(answer: bytes | Refusal) -> bytes:
    assert isinstance(answer, bytes)
    return answer


def _version_bytes() -> bytes:
    return __version__.encode()[:24]


def _text(field: bytes) -> str:
    """A text from the other end, made harmless for terminals and logs."""
    text = field.rstrip(b"\0").decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in text)
