"""Admission to a group, refusals, and what each process is told."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from ranks import Ranks

from ferrule.errors import AuthError, RendezvousError
from ferrule.fabric.join import handshake
from ferrule.fabric.join import pending as pending_module
from ferrule.fabric.join.control_channel import Deadline
from ferrule.fabric.join.handshake import (
    Elsewhere,
    Identity,
    Refusal,
    Role,
    Session,
    Steps,
    accept_steps,
    connect_steps,
)
from ferrule.fabric.join.pending import NO_EPOCH, PendingPeers, Place
from ferrule.secure import Stranger

KEY = secrets.token_bytes(32)
CLIENT = Identity(Role.COLLECTIVES, 1, 0, 2, bytes(range(16)))


def converse(
    client: Steps,
    server: Steps,
    tamper: Callable[[bytes], bytes] = lambda message: message,
    judge: Callable[[Identity], Refusal | None] = lambda who: None,
) -> tuple[Session | Exception, Session | Exception]:
    """Run both ends against each other; what each came to. ``tamper`` sees what the client sends, ``judge`` decides
    at the server."""
    ends = {"client": client, "server": server}
    inbox = {"client": b"", "server": b""}
    wants: dict[str, int] = {}
    results: dict[str, Session | Exception] = {}

    def advance(name: str, answer: bytes | Refusal | None) -> None:
        other = "server" if name == "client" else "client"
        try:
            while True:
                want = next(ends[name]) if answer is None else ends[name].send(answer)
                if isinstance(want, int):
                    wants[name] = want
                    return
                if isinstance(want, Identity):
                    answer = judge(want) or b""
                    continue
                inbox[other] += tamper(want) if name == "client" else want
                answer = b""
        except StopIteration as end:
            results[name] = end.value
        except (AuthError, RendezvousError, Stranger) as error:
            results[name] = error

    advance("server", None)
    advance("client", None)
    for _ in range(10):
        for name in ("server", "client"):
            if name not in results and len(inbox[name]) >= wants[name]:
                answer, inbox[name] = inbox[name][: wants[name]], inbox[name][wants[name] :]
                advance(name, answer)
    return results["client"], results["server"]


def test_both_ends_come_to_the_same_key() -> None:
    client, server = converse(connect_steps(KEY, CLIENT), accept_steps(KEY, 0))
    assert isinstance(client, Session)
    assert isinstance(server, Session)
    assert client.key == server.key
    assert server.identity.rank == 1


def test_wrong_key_fails_on_both_ends() -> None:
    client, server = converse(connect_steps(secrets.token_bytes(32), CLIENT), accept_steps(KEY, 0))
    assert isinstance(client, AuthError)
    assert isinstance(server, AuthError)


def test_server_without_the_key_is_found_out() -> None:
    impostor = accept_steps(KEY, 0)
    steps = connect_steps(KEY, CLIENT)
    hello = next(steps)
    assert isinstance(hello, bytes)
    next(impostor)
    challenge = impostor.send(hello)
    assert isinstance(challenge, bytes)
    assert steps.send(b"") == len(challenge)
    assert isinstance(steps.send(challenge), bytes)
    assert isinstance(steps.send(b""), int)
    forged = challenge[:36] + secrets.token_bytes(32) + challenge[68:]
    with pytest.raises(AuthError, match="another cluster key"):
        steps.send(forged)


def test_recorded_proof_is_worth_nothing() -> None:
    said: list[bytes] = []

    def record(message: bytes) -> bytes:
        said.append(message)
        return message

    converse(connect_steps(KEY, CLIENT), accept_steps(KEY, 0), record)
    replayed = iter(said)
    _, server = converse(connect_steps(KEY, CLIENT), accept_steps(KEY, 0), lambda _: next(replayed))
    assert isinstance(server, AuthError)


def test_proof_of_the_server_is_not_one_of_the_client() -> None:
    labels = {
        hmac.digest(KEY, b"ferrule " + label + b"\0" + b"x", "sha256") for label in (b"client", b"server", b"session")
    }
    assert len(labels) == 3


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (Identity(Role.COLLECTIVES, 1, 0, 3, bytes(range(16))), "rank 0 of 3"),
        (Identity(Role.COLLECTIVES, 1, 5, 2, bytes(range(16))), "rank 5 of 2"),
        (Identity(Role.COLLECTIVES, 0, 0, 2, bytes(range(16))), "calls itself rank 0"),
        (Identity(Role.COLLECTIVES, 7, 0, 2, bytes(range(16))), "calls itself rank 7"),
        (Identity(Role.RENDEZVOUS, 1, 0, 2, bytes(range(16))), "another group"),
    ],
)
def test_peers_that_do_not_belong_are_refused_on_both_ends(client: Identity, text: str) -> None:
    pending = PendingPeers(bytes(range(16)), 0, 2, [Role.COLLECTIVES])
    for result in converse(connect_steps(KEY, client), accept_steps(KEY, 0), judge=pending.refusal):
        assert isinstance(result, RendezvousError)
        assert text in str(result)


def test_who_looks_for_rank_0_at_another_rank_is_told_to_ask_for_a_relay() -> None:
    pending = PendingPeers(NO_EPOCH, 3, 5, [])
    looking = connect_steps(KEY, Identity(Role.RENDEZVOUS, 4, 0, 5))
    client, server = converse(looking, accept_steps(KEY, 3), judge=pending.refusal)
    assert isinstance(client, Elsewhere)
    assert isinstance(server, Stranger)


def test_other_version_is_named_on_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = connect_steps(KEY, CLIENT)
    monkeypatch.setattr(handshake, "WIRE", replace(handshake.WIRE, number=99))
    hello = next(steps)
    monkeypatch.undo()

    def rest() -> Steps:
        yield hello
        reply = yield handshake.WIRE.reply.size
        assert isinstance(reply, bytes)
        handshake.check_reply(handshake.WIRE.parse_reply(reply), "rank 0")
        raise AssertionError("it was let in")

    for result in converse(rest(), accept_steps(KEY, 0)):
        assert isinstance(result, RendezvousError)
        assert "protocol 99" in str(result)
        assert "same version" in str(result)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10, secrets.token_bytes(500), bytes(500)])
def test_what_is_not_our_protocol_is_a_stranger(garbage: bytes) -> None:
    steps = accept_steps(KEY, 0)
    count = next(steps)
    assert isinstance(count, int)
    with pytest.raises(Stranger):
        steps.send(garbage[:count])


@pytest.mark.slow
def test_wrong_key_is_told_at_once_to_who_has_it_and_in_the_end_to_who_waits() -> None:
    """A peer with another key may claim any rank: rank 0 goes on waiting for the right one."""
    with Ranks("joins", 2, rank_env=[{}, {"FERRULE_KEY": secrets.token_hex(32)}], timeout=3) as ranks:
        reports = ranks.reports()
    for report in reports:
        assert report["error"] == "AuthError"
        assert "same FERRULE_KEY" in report["text"]
    assert "rank 1 is missing after 3 s" in reports[0]["text"]
    assert "rank 0 refused our cluster key" in reports[1]["text"]


def test_only_who_knows_the_key_can_end_a_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_module, "_GRACE_SECONDS", -1.0)
    refusal = RendezvousError("a refusal")
    pending = PendingPeers(NO_EPOCH, 0, 2, [Role.RENDEZVOUS], strict=True)
    pending.refused(AuthError("another key"), proved=False)
    with pytest.raises(AuthError, match=r"rank 1 is missing after 0\.1 s.*another key"):
        pending.take([Place(Role.RENDEZVOUS, 1)], Deadline(0.1))
    pending.refused(refusal, proved=True)
    with pytest.raises(RendezvousError, match="a refusal"):
        pending.take([Place(Role.RENDEZVOUS, 1)], Deadline(10))


@pytest.mark.slow
def test_missing_ranks_are_named() -> None:
    with Ranks("joins", 2, env={"FERRULE_WORLD_SIZE": "4"}, timeout=3) as ranks:
        reports = ranks.reports()
    assert reports[0]["error"] == "RendezvousError"
    assert "rank 2, 3 are missing after 3 s" in reports[0]["text"]
    assert "rank 0 gave up: rank 2, 3 are missing" in reports[1]["text"], "both have the same deadline"


def test_rank_claimed_twice_is_named() -> None:
    with Ranks("joins", 3, rank_env=[{}, {}, {"FERRULE_RANK": "1"}]) as ranks:
        report = ranks.next(0)
    assert "two processes claim to be rank 1" in report["text"]
    assert report["took"] < 10


@pytest.mark.parametrize(("name", "value"), [("FERRULE_TRANSPORT", "tcp"), ("FERRULE_ALGORITHM", "ring")])
def test_what_must_be_the_same_on_all_ranks_is_named(name: str, value: str) -> None:
    with Ranks("joins", 2, rank_env=[{}, {name: value}]) as ranks:
        reports = ranks.reports()
    for report in reports:
        assert f"rank 1 was started with {name}={value}, rank 0 with auto" in report["text"]


def test_shared_memory_that_is_asked_for_but_not_to_be_had_is_an_error_with_its_cure() -> None:
    for arguments, why in (({"no_room": True}, "no room"), ({"memory_ids": ["a", "b"]}, "cannot be shared")):
        with Ranks("joins", 2, transport="shm", arguments=arguments) as ranks:
            for report in ranks.reports():
                assert report["error"] == "RendezvousError"
                assert why in report["text"]
                assert "FERRULE_TRANSPORT=auto" in report["text"]


def test_strangers_neither_block_nor_break_the_rendezvous() -> None:
    """Rank 1 comes last, when a hundred strangers of all sorts are with rank 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    env = {
        "FERRULE_RANK": "0",
        "FERRULE_WORLD_SIZE": "2",
        "FERRULE_ADDRESS": f"127.0.0.1:{address[1]}",
        "FERRULE_KEY": KEY.hex(),
        "FERRULE_TIMEOUT": "20",
    }
    program = "import ferrule.fabric as f\nwith f.init() as group: group.barrier()"
    with subprocess.Popen([sys.executable, "-c", program], env=os.environ | env) as rank_0:
        strangers = [connect(address)]
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100_000, handshake.WIRE.magic, bytes(4096)):
            strangers.append(connect(address))
            # It may be thrown out while it still talks.
            with contextlib.suppress(OSError):
                strangers[-1].sendall(words)
        strangers += [connect(address) for _ in range(100)]
        begin = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | env | {"FERRULE_RANK": "1"}, check=True, timeout=20
        )
        assert rank_0.wait(10) == 0
        assert time.monotonic() - begin < 10
        for stranger in strangers:
            stranger.close()


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to a server that may still be starting."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(address, timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"FERRULE_RANK": "0"}, "FERRULE_WORLD_SIZE"),
        ({"FERRULE_WORLD_SIZE": "2"}, "FERRULE_RANK"),
        ({"FERRULE_RANK": "0", "FERRULE_WORLD_SIZE": "2", "FERRULE_ADDRESS": "127.0.0.1:1"}, "FERRULE_KEY"),
        ({"FERRULE_RANK": "0", "FERRULE_WORLD_SIZE": "2", "FERRULE_KEY": "00" * 32}, "FERRULE_ADDRESS"),
    ],
)
def test_partial_environment_is_never_a_group_of_one(env: dict[str, str], text: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FERRULE_")}
    program = "import ferrule.fabric as f\nf.init()"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], env=clean | env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "ConfigError" in done.stderr
    assert text in done.stderr.splitlines()[-1]
    assert time.monotonic() - begin < 20
