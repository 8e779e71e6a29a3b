"""The protocol of the labs' control sockets: a request, then its answer, each a line of JSON; decoded here only."""

from __future__ import annotations

import socket
import traceback
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ferrule.errors import ConfigError, FerruleError, LabError

_MOST_REQUEST_BYTES, _MOST_ANSWER_BYTES = (
    1 << 20,
    1 << 27,
)  # bytes; the longest answer is what a guest wrote to its console
_T = TypeVar("_T")
Name = Annotated[str, Meta(max_length=256)]


class Request(msgspec.Struct, frozen=True, tag_field="do", tag=str.lower, forbid_unknown_fields=True):
    """Base of all requests."""


class Down(Request, frozen=True):
    """End the lab."""


class Status(Request, frozen=True):
    pass


class Fault(Request, frozen=True):
    """``arguments``: as `ferrule lab fault` and `ferrule lab vm fault` take them."""

    cable: Name
    arguments: tuple[Name, ...]
    sender: Name | None = None


class Console(Request, frozen=True):
    """Request for the output of a guest's serial console."""

    host: Name


class Reboot(Request, frozen=True):
    host: Name


class Lend(Request, frozen=True):
    """The sockets of a session of a guest, and of a terminal if one is wanted; answered by `Lent` and descriptors."""

    host: Name
    terminal: bool


class Lent(msgspec.Struct, tag="lent", frozen=True):
    """``terminal``: its number."""

    terminal: int | None


LabRequest = Status | Fault | Down | Console | Reboot | Lend


class _Reply(msgspec.Struct, tag="reply", omit_defaults=True):
    """An answer, or an error with the ``code`` of its kind."""

    answer: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str = ""
    code: str = ""


def answer(value: object) -> bytes:
    return msgspec.json.encode(_Reply(msgspec.Raw(msgspec.json.encode(value)))) + b"\n"


def refusal(error: Exception, log: Path) -> bytes:
    """An error as an answer. One that is a fault of ours is written to standard error, which is the file ``log``."""
    if isinstance(error, FerruleError):
        return msgspec.json.encode(_Reply(error=str(error), code=error.code)) + b"\n"
    traceback.print_exception(error)
    said = f"{type(error).__name__}: {error}; what led to it is in {log}"
    return msgspec.json.encode(_Reply(error=said, code=LabError.code)) + b"\n"


def read_line(connection: socket.socket) -> bytes:
    """A request; nothing where it does not end within the limit. Raises `OSError`."""
    line = connection.makefile("rb").readline(_MOST_REQUEST_BYTES)
    return line if line.endswith(b"\n") else b""


def decode(line: bytes, kinds: Any) -> Any:
    """A request of one of ``kinds``, a union. Raises `ConfigError`."""
    try:
        return msgspec.json.decode(line, type=kinds)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"that is no request to this lab ({error}); another version may run it") from None


def connect(control: Path, seconds: float) -> socket.socket:
    """A connection to a control socket. Raises `OSError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(str(control))
    except BaseException:
        connection.close()
        raise
    return connection


def send(connection: socket.socket, request: Request) -> None:
    connection.sendall(msgspec.json.encode(request) + b"\n")


def take(line: bytes, kind: type[_T]) -> _T:
    """The value of an answer. Raises `ConfigError` or `LabError` if it is an error, `MsgspecError` if it is none."""
    reply = msgspec.json.decode(line, type=_Reply)
    if reply.answer is msgspec.UNSET:
        raise (ConfigError if reply.code == ConfigError.code else LabError)(reply.error)
    return msgspec.json.decode(reply.answer, type=kind)


def ask(control: Path, request: Request, kind: type[_T], *, seconds: float, who: str, cure: str = "") -> _T:
    """The answer to a request, within ``seconds``. ``who``: which lab that is; ``cure``: of one that does not answer.

    Raises `ConfigError` or `LabError` with what it answers, `LabError` where it does not answer.
    """
    try:
        with connect(control, seconds) as connection:
            send(connection, request)
            return take(connection.makefile("rb").readline(_MOST_ANSWER_BYTES), kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise LabError(f"{who} does not answer ({error}){cure}") from error
