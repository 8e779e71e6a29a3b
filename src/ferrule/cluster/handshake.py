"""Handshake fields by which callers and agents identify themselves (`ferrule.secure.handshake`).

All that a stranger learns is that this is Ferrule, and of which version.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import IntEnum

from ferrule import __version__
from ferrule.errors import AuthError, ClusterError
from ferrule.secure import Status, Stranger, fingerprint
from ferrule.secure.handshake import (
    Exchange,
    Line,
    Opening,
    Reply,
    Wire,
    WrongKey,
    challenge_steps,
    client_steps,
    hear_hello,
)

# A hello tells which cluster is meant (its public fingerprint) and the caller's host.
WIRE = Wire(b"FERRULEC", number=2, label=b"ferrule cluster ", fields="8s 16s", text_bytes=128)


class Purpose(IntEnum):
    """Purpose of a connection to an agent."""

    PEER = 1
    """From another host's agent: heartbeats, and what both know."""
    ASK = 2
    """Questions and orders, one after another."""
    START = 3
    """A process is to be started, whose control socket this connection then is."""


@dataclass(frozen=True)
class Caller:
    """Caller of an agent: its host's id, and the purpose."""

    host: str
    purpose: Purpose


def call_steps(key: bytes, caller: Caller, where: str, opening: Opening | None = None) -> Exchange[Line]:
    """The caller's side. ``where``: for errors.

    Raises `AuthError` (another key, or another cluster) and `ClusterError` (another version, or no Ferrule at all).
    """

    def check(reply: Reply) -> None:
        if not reply.ours:
            raise ClusterError(f"what answers at {where} is not Ferrule; check the address and the port")
        if reply.protocol != WIRE.number:
            raise ClusterError(
                f"{where} runs ferrule {reply.version}, this host ferrule {__version__}; install the same "
                "version on both"
            )
        if reply.status == Status.OTHER_CLUSTER:
            raise AuthError(f"{where} belongs to another cluster than this token; print its own: ferrule token")
        if reply.status == Status.WRONG_KEY:
            raise AuthError(f"{where} refused this cluster's key; print its own there: ferrule token")
        if reply.status != Status.WELCOME:
            raise ClusterError(f"{where}: {reply.text}")

    hello = WIRE.pack_hello(caller.purpose, bytes.fromhex(fingerprint(key)), bytes.fromhex(caller.host))
    try:
        proof = yield from client_steps(WIRE, key, hello, check, opening)
    except WrongKey:
        raise AuthError(f"{where} did not prove that it knows this cluster's key") from None
    return proof.line


def answer_steps(key: bytes, opening: Opening | None = None) -> Exchange[tuple[Caller, Line]]:
    """The agent's side: the caller, once it has proved that it knows the key. Raises `Stranger` where it does not."""
    hello = yield from hear_hello(WIRE)
    name, host = hello.fields
    refusal = None
    if hello.protocol != WIRE.number:
        refusal = WIRE.pack_reply(Status.REFUSED)
    elif not hmac.compare_digest(name, bytes.fromhex(fingerprint(key))):
        refusal = WIRE.pack_reply(Status.OTHER_CLUSTER)
    elif hello.kind not in tuple(Purpose):
        refusal = WIRE.pack_reply(Status.REFUSED, text="it does not know what this connection is for")
    if refusal is not None:
        yield refusal
        raise Stranger
    try:
        proof = yield from challenge_steps(WIRE, key, hello, opening)
    except WrongKey:
        raise Stranger from None
    yield from proof.welcome()
    return Caller(host.hex(), Purpose(hello.kind)), proof.line
