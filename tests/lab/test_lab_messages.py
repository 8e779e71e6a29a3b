"""Requests to labs and their answers: what is written is read back, and all else is refused with a reason."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from ferrule.errors import ConfigError, LabError, PlanError
from ferrule.lab.daemon import messages
from ferrule.lab.daemon.messages import Console, Down, Fault, LabRequest, Lend, Reboot, Status
from ferrule.lab.usb4.messages import GetState, Heal, Order, Plug, Reshape, SetFault, Usb4Request
from ferrule.lab.usb4.profile import FaultKind, Plan, Usb4Cable, Usb4Host

SECONDS = 20.0


@pytest.mark.parametrize(
    ("request_", "kinds"),
    [
        *((each, LabRequest) for each in (Down(), Status(), Console("a"), Reboot("a"), Lend("a", True))),
        (Fault("cable0", ("delay=300us", "loss=1%"), "a"), LabRequest),
        *((each, Usb4Request) for each in (GetState(), Plug("cable0", True), Heal("cable0"), Down())),
        (SetFault("cable0", FaultKind.DROP, 0.5, None), Usb4Request),
        (Reshape("cable0", None, 5.0), Usb4Request),
    ],
)
def test_requests_round_trip(request_: messages.Request, kinds: object) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages.send(ours, request_)
        assert messages.decode(messages.read_line(theirs), kinds) == request_


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello\n", "malformed"),
        (b"[]\n", "object"),
        (b"{}\n", "do"),
        (b'{"do": "dance"}\n', "dance"),
        (b'{"do": "fault", "cable": "cable0"}\n', "arguments"),
        (b'{"do": "status", "more": 1}\n', "more"),
        (b'{"do": "console", "host": "' + b"x" * 300 + b'"}\n', "256"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(line: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        messages.decode(line, LabRequest)


def test_a_request_without_an_end_is_not_read_for_ever() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=ours.sendall, args=(b"x" * (1 << 20),))
        sending.start()
        assert messages.read_line(theirs) == b""
        sending.join(SECONDS)


def test_answers_and_errors_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    log = Path("/somewhere/log")
    assert messages.take(messages.answer({"a": 1}), dict[str, int]) == {"a": 1}
    assert messages.take(messages.answer(None), type(None)) is None
    assert set(json.loads(messages.answer(None))) == {"type", "answer"}
    for error, kind in (
        (ConfigError("wrong"), ConfigError),
        (LabError("wrong"), LabError),
        (PlanError("no"), LabError),
    ):
        with pytest.raises(kind, match=str(error)):
            messages.take(messages.refusal(error, log), str)
    assert capsys.readouterr().err == ""
    with pytest.raises(LabError, match="KeyError: 'x'; what led to it is in /somewhere/log"):
        messages.take(messages.refusal(KeyError("x"), log), str)
    assert "KeyError" in capsys.readouterr().err, "a fault of ours has its traceback in the log"
    with pytest.raises(msgspec.ValidationError):
        messages.take(messages.answer("text"), int)


def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"the lab 'x' does not answer \(.*No such file.*\); end it"):
        messages.ask(tmp_path / "control", Status(), str, seconds=1, who="the lab 'x'", cure="; end it")


def test_the_order_of_a_usb4_lab_round_trips() -> None:
    plan = Plan((Usb4Host("a"), Usb4Host("b", vendor="amd")), (Usb4Cable("cable0", ("a", 0), ("b", 1), rate=1e9),))
    order = Order(plan, "", 0.5)
    assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order
    with pytest.raises(ConfigError, match="two hosts are called a"):
        msgspec.json.decode(msgspec.json.encode(order).replace(b'"name":"b"', b'"name":"a"'), type=Order)
