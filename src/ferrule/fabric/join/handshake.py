"""The handshake between two ranks (over `ferrule.secure.handshake`), directly or through a relay.

Afterwards every message is encrypted (`ferrule.secure.aead`), and all else where both ends were told so
(docs/security.md).

Where two ranks share no link, the client first proves itself in the same way to a rank between them (as a
`Role.RELAY`), which connects to the target and from then on only copies bytes; then both ends shake hands through it as
above, so that the relay cannot pass for either.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum

from ferrule import __version__
from ferrule.errors import AuthError, RendezvousError
from ferrule.secure import Status, Stranger
from ferrule.secure.handshake import Reply, Wire, WrongKey, challenge_steps, client_steps, hear_hello

# A hello tells rank, target, world size, rail and epoch, as `Identity` has them.
WIRE = Wire(b"FERRULE\0", number=5, label=b"ferrule ", fields="i i i i 16s", text_bytes=192)
_RANK = struct.Struct("<i")


class Role(IntEnum):
    """Purpose of a connection."""

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


class Refused(RendezvousError):
    """The answering rank does not let this one in, and will not."""


class Elsewhere(RendezvousError):
    """``rank`` answers, which is not the target, but would relay to it."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


@dataclass(frozen=True)
class Identity:
    """Identity of both ends of a connection: who connects to whom. ``epoch``: 16 random bytes that name the group;
    zeros before there is one.

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
    """Reason why a rank that proved to know the key is not let in. ``rank``: the one that answers, where another was
    meant."""

    text: str
    status: Status = Status.REFUSED
    rank: int = -1


@dataclass(frozen=True)
class Session:
    """An authenticated connection: who is at the other end, a key for what follows, and whether that is encrypted."""

    identity: Identity
    key: bytes
    encrypt: bool = False


Steps = Generator[int | bytes | Identity, bytes | Refusal, Session]
"""Yields a number of bytes to read (and is sent them), bytes to write (and is sent ``b""``), or, at the server, who it
is that proved to know the key (and is sent ``b""`` for welcome, or a `Refusal`)."""


def connect_steps(key: bytes, identity: Identity, *, encrypt: bool = False) -> Steps:
    """The client's side. ``encrypt``: what follows, as the server must want it too.

    Raises `AuthError` or `RendezvousError` (`Elsewhere` where another rank answers)."""
    where = "the rank between" if identity.role == Role.RELAY else f"rank {identity.target}"
    hello = WIRE.pack_hello(
        identity.role,
        identity.rank,
        identity.target,
        identity.world_size,
        identity.rail,
        identity.epoch,
        encrypt=encrypt,
    )
    try:
        proof = yield from client_steps(WIRE, key, hello, lambda reply: check_reply(reply, where))
    except WrongKey:
        raise AuthError(f"{where} has another cluster key; give every rank the same FERRULE_KEY") from None
    return Session(identity, proof.session_key(), encrypt)


def relayed_steps(key: bytes, request: Identity, identity: Identity, *, encrypt: bool = False) -> Steps:
    """The client's side where another rank answers: ask it to relay (``request``), then go on with the target."""
    yield from opening_steps(key, request)
    return (yield from connect_steps(key, identity, encrypt=encrypt))


def opening_steps(key: bytes, request: Identity) -> Steps:
    """Ask the rank that answers to relay, and wait until it has connected: all further bytes are the target's."""
    session = yield from connect_steps(key, request)
    received = yield WIRE.reply.size
    assert isinstance(received, bytes)
    reply = WIRE.parse_reply(received)
    try:
        check_reply(reply, "the rank between")
    except Refused as error:
        raise RendezvousError(str(error)) from None  # another rank may know a way
    if not hmac.compare_digest(reply.value, _opened_mac(session)):
        raise AuthError("a message of the rank between was altered on its way")
    return session


def silent_steps(identity: Identity) -> Steps:
    """No handshake: two other ranks make theirs over this connection."""
    yield from ()
    return Session(identity, b"")


def opened(session: Session) -> bytes:
    """A relay's reply that it has connected to the target: all further bytes are the target's."""
    return WIRE.pack_reply(Status.WELCOME, _opened_mac(session))


def not_opened(text: str) -> bytes:
    """A relay's reply that it cannot connect to the target."""
    return WIRE.pack_reply(Status.REFUSED, text=text)


def accept_steps(key: bytes, rank: int, *, encrypt: bool = False) -> Steps:
    """The server's side. ``rank``: its own, for error messages; which peers to accept is decided outside.

    ``encrypt``: what follows; never what a rank asks that wants to be relayed, whose bytes its target decrypts.

    Raises `Stranger`, `AuthError` (a peer with another key) or `RendezvousError` (another version, or refused).
    """
    hello = yield from hear_hello(WIRE)
    peer, target, world_size, rail, epoch = hello.fields
    if peer < 0:
        raise Stranger
    if hello.protocol != WIRE.number:
        text = (
            f"rank {peer} runs ferrule {hello.version} (protocol {hello.protocol}), rank {rank} runs "
            f"ferrule {__version__} (protocol {WIRE.number}); install the same version everywhere"
        )
        yield WIRE.pack_reply(Status.REFUSED, text=text)
        raise Refused(text)
    encrypt &= hello.kind != Role.RELAY
    if hello.encrypt != encrypt:
        text = (
            f"rank {peer} was started with FERRULE_ENCRYPT={hello.encrypt:d}, rank {rank} with {encrypt:d}; "
            "give all the same"
        )
        yield WIRE.pack_reply(Status.REFUSED, text=text)
        raise Refused(text)
    try:
        proof = yield from challenge_steps(WIRE, key, hello)
    except WrongKey:
        raise AuthError(f"rank {peer} has another cluster key; give every rank the same FERRULE_KEY") from None
    if hello.kind not in _ROLES:
        raise Stranger
    identity = Identity(Role(hello.kind), peer, target, world_size, epoch, rail)
    refusal = yield identity
    if isinstance(refusal, Refusal):
        yield from proof.refuse(refusal.status, _RANK.pack(refusal.rank), refusal.text)
        raise Refused(refusal.text) if refusal.status == Status.REFUSED else Stranger
    yield from proof.welcome()
    return Session(identity, proof.session_key(), encrypt)


def check_reply(reply: Reply, where: str) -> None:
    """Raise what a reply that is no welcome means."""
    if not reply.ours:
        raise RendezvousError(f"what answers at the address of {where} is not Ferrule; check FERRULE_ADDRESS")
    if reply.status == Status.WRONG_KEY:
        raise AuthError(f"{where} refused our cluster key; give every rank the same FERRULE_KEY")
    if reply.status == Status.ELSEWHERE:
        raise Elsewhere(reply.text, *_RANK.unpack_from(reply.value))
    if reply.status == Status.REFUSED:
        raise Refused(reply.text)
    if reply.status != Status.WELCOME:
        raise RendezvousError(reply.text)
    if reply.protocol != WIRE.number:
        raise RendezvousError(
            f"{where} runs ferrule {reply.version} (protocol {reply.protocol}), this rank runs ferrule {__version__} "
            f"(protocol {WIRE.number}); install the same version everywhere"
        )


def _opened_mac(session: Session) -> bytes:
    return hmac.digest(session.key, b"ferrule opened\0", "sha256")
