"""Commands for a guest, and the parts of its machine: all that needs no guest."""

from __future__ import annotations

import base64
import json
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import ConfigError, LabError
from ferrule.lab.daemon.messages import Lend
from ferrule.lab.vm import Guest
from ferrule.lab.vm.daemon import HeldGuests
from ferrule.lab.vm.machine.qemu import EXACT, TCG, Hardware, Qemu, controller_slot, qemu_version
from ferrule.lab.vm.machine.session import Reply, Session, SessionLost, SessionTimeout, request
from ferrule.lab.vm.once import READY, find, without_ready

MARK = "0123456789abcdef"


@given(output=st.binary(max_size=200), status=st.integers(0, 255), data=st.data())
def test_output_ends_at_the_mark_however_it_is_cut(output: bytes, status: int, data: st.DataObject) -> None:
    tricky = output + b"\n" + MARK.encode()[: len(output) % 17]
    whole = tricky + f"\n{MARK} {status}\n".encode()
    reply = Reply(MARK)
    came = b""
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        assert reply.status is None
        came += reply.feed(whole[:size])
        whole = whole[size:]
    assert (came, reply.status) == (tricky, status)


def test_nothing_is_held_back_that_cannot_be_the_mark() -> None:
    reply = Reply(MARK)
    assert reply.feed(b"64 bytes from strix-2\n64") == b"64 bytes from strix-2\n64"
    assert reply.feed(b"\n0123") == b""
    assert reply.feed(b"!") == b"\n0123!"


def test_word_that_a_peer_listens_comes_at_once() -> None:
    assert Reply(MARK).feed(READY) == READY


def test_word_that_a_peer_listens_is_heard_behind_a_line_of_its_command() -> None:
    reply = Reply(MARK)
    assert reply.feed(b"waiting for a client\n") == b"waiting for a client"
    assert without_ready(reply.feed(READY)) == (b"\n", True)
    assert without_ready(b"more") == (b"more", False)


def test_a_file_s_path_names_no_lab_that_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    profile = tmp_path / "alone.toml"
    profile.write_text('[lab.alone]\ntitle = "one"\nhosts = [{ name = "box", machine = "strix-halo" }]\n')
    assert find(str(profile)) is None


class OneSession:
    """A guest, and a lab of it, with a session that is lent."""

    def __init__(self) -> None:
        self.hosts = ("box",)
        self.free = [1]
        self.ends = socket.socketpair()

    def __getitem__(self, host: str) -> OneSession:
        return self

    def take_session(self, _: float) -> int:
        return self.free.pop()

    def sockets(self, _: int) -> tuple[socket.socket, socket.socket]:
        return self.ends

    def free_session(self, number: int) -> None:
        self.free.append(number)


def test_session_for_a_caller_that_has_gone_is_free_again(tmp_path: Path) -> None:
    lab = OneSession()
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, lab.ends[0], lab.ends[1]:
        with pytest.raises(OSError, match="pipe"):
            HeldGuests(tmp_path, "x", lab).lend(ours, Lend("box", False))  # type: ignore[arg-type]
        assert lab.free == [1]


def guest(requests: socket.socket, errors: socket.socket) -> None:
    """Answers one request with its own script, and a line of errors."""
    with requests, errors, requests.makefile("rb") as lines:
        line = lines.readline()
        while line == b"\n":
            line = lines.readline()
        mark, script, end = line.split()
        errors.sendall(b"a warning")
        answer = base64.b64decode(script) + b"\n" + mark + b" 3\n"
        requests.sendall(answer if end == b"end" else b"")


def test_session_gives_status_output_and_errors() -> None:
    ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    answering = threading.Thread(target=guest, args=theirs)
    answering.start()
    session = Session(*ours)
    said: tuple[list[bytes], list[bytes]] = ([], [])
    try:
        assert session.run("echo 'all of it'", 20, said[0].append, said[1].append) == 3
        assert [b"".join(parts) for parts in said] == [b"echo 'all of it'", b"a warning"]
        answering.join(20)
        with pytest.raises(SessionLost):
            session.run("more", 20, said[0].append, said[1].append)
    finally:
        session.close()


def test_session_does_not_wait_for_ever() -> None:
    ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    session = Session(*ours)
    with pytest.raises(SessionTimeout):
        session.run("true", 0.01, bytes, bytes)
    session.close()
    for end in theirs:
        end.close()


def test_a_command_of_any_length_is_one_line() -> None:
    line = request(MARK, "x\n" * 5000)
    assert line.strip().count(b"\n") == 0
    with pytest.raises(LabError, match="give it as a file"):
        request(MARK, "x" * (2 << 20))


def hardware(**more: object) -> Hardware:
    return Hardware(Path("/k"), "/i", "/c", "/r", 1, 512, **more)  # type: ignore[arg-type]


def test_memory_is_shared_with_the_server_of_a_controller() -> None:
    alone = Qemu(("qemu",)).line(TCG, hardware())
    assert "q35" in alone
    assert not any("memfd" in word for word in alone)
    joined = Qemu(("qemu",)).line(TCG, hardware(controllers=[Path("/a"), Path("/b")], streams=[("session0", 9)]))
    assert "memory-backend-memfd,id=usb4-memory,size=512M,share=on" in joined
    assert "q35,memory-backend=usb4-memory" in joined
    assert [word for word in joined if "vfio-user-pci" in word and '"/b"' in word and '"0x11"' in word]
    assert "socket,id=session0,fd=9" in joined
    assert controller_slot(1) == "0000:00:11.0"


def test_exact_time_counts_instructions_of_one_processor_of_one_guest() -> None:
    assert "-icount" in Qemu(("qemu",)).line(EXACT, hardware())
    with pytest.raises(ConfigError, match="cpus=1"):
        Guest(script="", exact_time=True)
    with pytest.raises(ConfigError, match="mock core"):
        Guest(script="", exact_time=True, cpus=1, controllers=[Path("/a")])


def test_a_disk_may_lie_at_any_path() -> None:
    assert not any("virtio-blk" in word for word in Qemu(("qemu",)).line(TCG, hardware()))
    words = Qemu(("qemu",)).line(TCG, hardware(disk=Path('/a, "b"')))
    block = json.loads(words[words.index("-blockdev") + 1])
    assert (block["driver"], block["file"]["filename"]) == ("raw", '/a, "b"')
    assert f"virtio-blk-pci,drive={block['node-name']}" in words
    with pytest.raises(ConfigError, match="one script"):
        Guest(script="", disk=Path("/a"), sessions=1)


def test_version_of_qemu() -> None:
    assert qemu_version("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)\nCopyright") == (11, 1)
    with pytest.raises(LabError, match="which version"):
        qemu_version("command not found")
