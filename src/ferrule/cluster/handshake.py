"""Two programs prove to each other that they belong to one cluster, as `ferrule.fabric.join.handshake` does for ranks.

    hello      caller -> agent    who calls, what for, which cluster (its public fingerprint), a random number
    challenge  agent -> caller    another random number (or a refusal)
    proof      caller -> agent    HMAC-SHA256(key, "caller" + hello + challenge)
    verdict    agent -> caller    HMAC-SHA256(key, "agent" + hello + challenge) (or a refusal)

Every message has a fixed size. All that a stranger learns is that this is Ferrule, and of which version. Each frame
that follows carries a MAC over its number and what it says; it is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum

from ferrule import __version__
from ferrule.cluster.token import fingerprint
from ferrule.errors import AuthError, ClusterError

PROTOCOL = 1
"""Raised whenever what agents say to each other changes."""

_MAGIC = b"FERRULEC"
# The first three fields must never move: they are how two versions recognise each other.
_HELLO = struct.Struct("<8s H 24s B x 8s 16s 32s")
_REPLY = struct.Struct("<8s H 24s B x 32s 128s")
HELLO_BYTES, REPLY_BYTES, PROOF_BYTES = _HELLO.size, _REPLY.size, 32


class Purpose(IntEnum):
    """What a connection to an agent is for."""

    PEER = 1
    """From another host's agent: beats, and what both know."""
    ASK = 2
    """Questions and orders, one after another."""
    START = 3
    """A process is to be started, whose control socket this connection then is."""


class _Status(IntEnum):
    WELCOME = 0
    WRONG_KEY = 1
    OTHER_CLUSTER = 2
    REFUSED = 3


class StrangerError(Exception):
    """Whoever connected does not speak our protocol; it gets no answer."""


@dataclass(frozen=True)
class Caller:
    """Who calls: its host's id, and what for."""

    host: str
    purpose: Purpose


@dataclass(frozen=True)
class Keys:
    """Of the frames in each direction."""

    from_caller: bytes
    from_agent: bytes


class CallerSide:
    """`hello`, then `prove` (the challenge), then `finish` (the verdict). ``where``: for the words of errors.

    Raises `AuthError` (another key, or another cluster) and `ClusterError` (another version, or no Ferrule at all).
    """

    def __init__(self, key: bytes, caller: Caller, where: str) -> None:
        self._key, self._where = key, where
        self._challenge = b""
        name = bytes.fromhex(fingerprint(key))
        host = bytes.fromhex(caller.host)
        self.hello = _HELLO.pack(_MAGIC, PROTOCOL, _version(), caller.purpose, name, host, secrets.token_bytes(32))

    def prove(self, challenge: bytes) -> bytes:
        self._check(challenge)
        self._challenge = challenge
        return _mac(self._key, b"caller", self.hello, challenge)

    def finish(self, verdict: bytes) -> Keys:
        self._check(verdict)
        if not hmac.compare_digest(_REPLY.unpack(verdict)[4], _mac(self._key, b"agent", self.hello, self._challenge)):
            raise AuthError(f"{self._where} did not prove that it knows this cluster's key")
        return _keys(self._key, self.hello, self._challenge)

    def _check(self, reply: bytes) -> None:
        magic, protocol, version, status, _, text = _REPLY.unpack(reply)
        if magic != _MAGIC:
            raise ClusterError(f"what answers at {self._where} is not Ferrule; check the address and the port")
        if protocol != PROTOCOL:
            raise ClusterError(
                f"{self._where} runs ferrule {_text(version)}, this host ferrule {__version__}; install the same "
                "version on both"
            )
        if status == _Status.OTHER_CLUSTER:
            raise AuthError(f"{self._where} belongs to another cluster than this token; print its own: ferrule token")
        if status == _Status.WRONG_KEY:
            raise AuthError(f"{self._where} refused this cluster's key; print its own there: ferrule token")
        if status != _Status.WELCOME:
            raise ClusterError(f"{self._where}: {_text(text)}")


class AgentSide:
    """`challenge` (of the hello), then `judge` (the proof); both give what to answer. Raises `StrangerError`."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hello = self._challenge = b""

    def challenge(self, hello: bytes) -> tuple[bytes, bool]:
        """The answer, and whether to go on after it."""
        magic, protocol, version, purpose, name, _, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or not version.rstrip(b"\0").isascii():
            raise StrangerError
        if protocol != PROTOCOL:
            return _reply(_Status.REFUSED), False
        if not hmac.compare_digest(name, bytes.fromhex(fingerprint(self._key))):
            return _reply(_Status.OTHER_CLUSTER), False
        if purpose not in tuple(Purpose):
            return _reply(_Status.REFUSED, text="it does not know what this connection is for"), False
        self._hello, self._challenge = hello, _reply(_Status.WELCOME, secrets.token_bytes(32))
        return self._challenge, True

    def judge(self, proof: bytes) -> tuple[bytes, Caller | None, Keys | None]:
        """The answer, and who it is that proved to know the key."""
        if not hmac.compare_digest(proof, _mac(self._key, b"caller", self._hello, self._challenge)):
            return _reply(_Status.WRONG_KEY), None, None
        fields = _HELLO.unpack(self._hello)
        caller = Caller(fields[5].hex(), Purpose(fields[3]))
        verdict = _reply(_Status.WELCOME, _mac(self._key, b"agent", self._hello, self._challenge))
        return verdict, caller, _keys(self._key, self._hello, self._challenge)


def seal(key: bytes, number: int, payload: bytes) -> bytes:
    """The MAC of frame ``number`` of a direction."""
    return hmac.new(key, struct.pack("<Q", number) + payload, hashlib.sha256).digest()


def _keys(key: bytes, hello: bytes, challenge: bytes) -> Keys:
    return Keys(_mac(key, b"frames of caller", hello, challenge), _mac(key, b"frames of agent", hello, challenge))


def _reply(status: _Status, value: bytes = bytes(32), text: str = "") -> bytes:
    return _REPLY.pack(_MAGIC, PROTOCOL, _version(), status, value, text.encode()[:128])


def _mac(key: bytes, label: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.new(key, b"ferrule cluster " + label + b"\0" + hello + challenge, hashlib.sha256).digest()


def _version() -> bytes:
    return __version__.encode()[:24]


def _text(field: bytes) -> str:
    """A text from the other end, made harmless for terminals and logs."""
    text = field.rstrip(b"\0").decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
