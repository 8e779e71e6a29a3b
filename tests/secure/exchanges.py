"""Both ends of a handshake against each other, without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrule.errors import AuthError
from ferrule.secure.handshake import Status, Stranger, Wire, WrongKey, challenge_steps, client_steps, hear_hello

WIRE = Wire(b"TESTING\0", number=7, label=b"testing ", fields="i 4s", text_bytes=64)
KEY, OTHER = bytes(range(32)), bytes(32)


class RefusedError(Exception):
    """A reply that is no welcome."""


def check(reply):
    if not reply.ours or reply.status != Status.WELCOME:
        raise RefusedError(reply)


def client(key=KEY, opening=None):
    return client_steps(WIRE, key, WIRE.pack_hello(1, -5, b"abcd"), check, opening)


def server(key=KEY, opening=None):
    hello = yield from hear_hello(WIRE)
    proof = yield from challenge_steps(WIRE, key, hello, opening)
    yield from proof.welcome()
    return hello, proof


def converse(
    one: Any, two: Any, tamper: Callable[[str, bytes], bytes] = lambda name, message: message
) -> dict[str, Any]:
    """Outcome of each of "client" and "server": a result, or what it raised; nothing where it waits in vain.

    ``tamper`` sees who sends what, and says what arrives.
    """
    ends = {"client": one, "server": two}
    inbox = {"client": bytearray(), "server": bytearray()}
    wants: dict[str, int | None] = {"client": None, "server": None}
    results: dict[str, Any] = {}

    def advance(name: str, answer: bytes | None) -> None:
        other = "server" if name == "client" else "client"
        try:
            while True:
                want = ends[name].send(answer)
                if isinstance(want, int):
                    wants[name] = want
                    return
                inbox[other] += tamper(name, want)
                answer = b""
        except StopIteration as end:
            results[name] = end.value
        except (AuthError, RefusedError, Stranger, WrongKey) as error:
            results[name] = error

    advance("server", None)
    advance("client", None)
    moved = True
    while moved:
        moved = False
        for name in ("server", "client"):
            want = wants[name]
            if name not in results and want is not None and len(inbox[name]) >= want:
                answer = bytes(inbox[name][:want])
                del inbox[name][:want]
                advance(name, answer)
                moved = True
    return results
