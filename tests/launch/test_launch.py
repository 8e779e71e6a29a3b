"""Ranks that `Launcher` starts on this machine through a supervisor: as on other hosts, but for the way there."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_local import wait_until_gone

from ferrule.cluster.home import ClusterHome, HostSettings, new_host_id
from ferrule.cluster.records import HostRecord, Member
from ferrule.cluster.store import Store
from ferrule.errors import LaunchError
from ferrule.launch import JobResult, Launcher, RankOutput, Task, protocol
from ferrule.launch.hostfile import HostEntry
from ferrule.launch.places import LocalPlace, SshPlace, place_for
from ferrule.mlx_backend import library
from ferrule.secure import KEY_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tested on Linux")


class Heard:
    """Everything that ranks print; ``ready`` is called once each of ``count`` ranks has printed a whole line."""

    def __init__(self, count: int, ready: Any = lambda: None) -> None:
        self.texts = [b""] * count
        self._ready = ready
        self._told = False

    def __call__(self, rank: int, stream: int, data: bytes) -> None:
        self.texts[rank] += data
        if not self._told and all(text.endswith(b"\n") for text in self.texts):
            self._told = True
            self._ready()

    @property
    def lines(self) -> list[list[str]]:
        return [text.decode().splitlines() for text in self.texts]


def launch(ranks: int, script: str, *, heard: Any = None, cwd: str = "/", **options: Any) -> JobResult:
    argv = ("sh", "-c", script)
    env = options.pop("env", {})
    with Launcher([LocalPlace(HostEntry("localhost", ranks))], ranks, output=heard or Heard(ranks), **options) as job:
        return job.run(Task(argv, cwd, env))


def test_eight_ranks_their_environment_and_exit_code(tmp_path: Path) -> None:
    heard = Heard(8)
    script = 'echo $RANK $WORLD_SIZE $LOCAL_RANK $FERRULE_RANK $A $MLX_RANK; pwd; cat "$MLX_HOSTFILE"'
    result = launch(8, script, heard=heard, cwd=str(tmp_path), env={"A": "b"}, key="c0ffee" * 8)
    assert (result.codes, result.exit_code) == ((0,) * 8, 0)
    rings = set()
    for rank, (first, second, ring) in enumerate(heard.lines):
        assert first == f"{rank} 8 {rank} {rank} b {rank}"
        assert second == str(tmp_path)
        rings.add(ring)
    (ring,) = rings
    assert len({address for (address,) in json.loads(ring)}) == 8


def test_mlx_finds_ferrule_and_where_it_is_asked_to_nothing_else() -> None:
    heard = Heard(2)
    task = Task(("sh", "-c", 'echo "$MLX_MPI_LIBNAME$MLX_RANK$MLX_HOSTFILE"'), "/", {}, "ferrule")
    with Launcher([LocalPlace(HostEntry("localhost", 2))], 2, output=heard) as job:
        job.run(task)
    assert heard.lines == [[library()]] * 2


def test_one_failure_ends_all_even_what_has_detached_itself(tmp_path: Path) -> None:
    """Rank 0 ignores SIGTERM, and its child is no member of its group any more."""
    script = (
        "if [ $RANK = 1 ]; then until [ -s pids ]; do sleep 0.01; done; exit 7; fi\n"
        "trap '' TERM; setsid sleep 60 & echo $! $$ >new; mv new pids; wait; sleep 60"
    )
    result = launch(2, script, cwd=str(tmp_path))
    assert (result.first_failed, result.exit_code) == (1, 7)
    assert result.codes[0] in (-signal.SIGKILL, -signal.SIGTERM)
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


WAITING = """
import os, signal, sys

def end(number, _):
    if len(sys.argv) == 1:
        os.write(1, b"%d\\n" % number)
        os._exit(0 if number == signal.SIGUSR1 else number + 40)

for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
"""Ends at a signal, at SIGINT and SIGTERM with a number of its own; with an argument it does not care."""


def waiting_ranks(numbers: Sequence[int], *words: str, grace: float = 600.0) -> tuple[JobResult, Heard]:
    """Two ranks that get signals as soon as they are ready."""
    heard = Heard(2, lambda: [job.signal(number) for number in numbers])
    with Launcher([LocalPlace(HostEntry("localhost", 2))], 2, output=heard, grace=grace) as job:
        result = job.run(Task((None, "-I", "-S", "-c", WAITING, *words), "/"))
        assert job.signalled == (None if numbers[0] == signal.SIGUSR1 else numbers[0])
    return result, heard


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_all_ranks(number: signal.Signals) -> None:
    result, heard = waiting_ranks([number])
    assert result.codes == (0 if number == signal.SIGUSR1 else number + 40,) * 2
    assert heard.lines == [["ready", str(int(number))]] * 2


def test_second_signal_and_the_end_of_patience_kill() -> None:
    for numbers, grace in (([signal.SIGTERM, signal.SIGTERM], 600.0), ([signal.SIGINT], 0.1)):
        result, _ = waiting_ranks(numbers, "never mind", grace=grace)
        assert result.codes == (-signal.SIGKILL,) * 2


def supervisor() -> subprocess.Popen[bytes]:
    command = LocalPlace(HostEntry("localhost")).command()
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def start(process: subprocess.Popen[bytes], silence: float | None) -> list[int]:
    """Two ranks that sleep: their process ids, as far as they are told before the supervisor ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    hello = protocol.Hello(protocol.PROTOCOL, "", 1, {}, links=False, silence=silence)
    ranks = tuple(protocol.RankCommand(rank, ("sh", "-c", "echo $$; exec sleep 60"), {}) for rank in range(2))
    begin = protocol.Start("/", defaults={}, files={}, own_path=False, ranks=ranks)
    process.stdin.write(b"".join(map(protocol.encode, (hello, begin))))
    decoder = protocol.reports()
    pids = []
    while len(pids) < 2 and (told := os.read(process.stdout.fileno(), 1 << 16)):
        pids += [int(report.data) for report in decoder.feed(told) if isinstance(report, protocol.Printed)]
    return pids


@pytest.mark.parametrize("silence", [None, 0.5])
def test_nothing_outlives_a_launcher_that_is_gone_or_silent(silence: float | None) -> None:
    with supervisor() as process:
        pids = start(process, silence)
        if silence is None:
            assert process.stdin is not None
            assert len(pids) == 2
            process.stdin.close()
        wait_until_gone(pids)
        assert process.wait(20) == 0


def test_places_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, each with its cure; ssh is played by a shell script."""
    monkeypatch.setenv("FERRULE_STATE", str(tmp_path))
    home = ClusterHome("desk")
    home.create(bytes(KEY_BYTES), HostSettings(new_host_id(), "here", 8421))
    store, member = Store(home.directory / "state.db"), Member(new_host_id(), "strix-2", 8421, ("10.0.0.2",), "1", "3")
    store.keep([HostRecord(name=member.host, version=1, writer=member.host, value=member)])
    store.close()
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do shift; done\n'
        "case $2 in\n"
        "unknown|strix-2) echo 'ssh: Could not resolve hostname unknown: Name or service not known' >&2; exit 255;;\n"
        "off) echo 'ssh: connect to host off port 22: No route to host' >&2; exit 255;;\n"
        "locked) echo 'me@locked: Permission denied (publickey).' >&2; exit 255;;\n"
        "bare) echo 'sh: 1: exec: /no/python: not found' >&2; exit 127;;\n"
        "other) echo '/usr/bin/python3: No module named ferrule' >&2; exit 1;;\n"
        "esac\n"
    )
    ssh.chmod(0o755)
    names = ("unknown", "off", "locked", "bare", "other", "strix-2")
    entries = [HostEntry(name, python="/no/python") for name in names]
    places = [place_for(entry, program=[str(ssh)], seconds=3) for entry in entries]
    assert "ConnectTimeout=3" in places[0].command()
    assert places[0].command()[-1] == "exec /no/python -P -m ferrule.launch.supervisor"
    with Launcher(places) as job, pytest.raises(LaunchError) as caught:
        job.connect()
    told = str(caught.value).splitlines()
    assert told[0].startswith("unknown host unknown (ssh: Could not resolve hostname")
    assert "cannot reach off (ssh: connect to host off port 22: No route to host)" in told[1]
    assert "ssh-copy-id locked" in told[2]
    assert "there is no /no/python on bare; say which Python has Ferrule there: --python" in told[3]
    assert "/no/python on other has no Ferrule" in told[4]
    assert "strix-2 over ssh" in told[5]
    assert "a host of the cluster 'desk'" in told[5]
    assert "give --cluster beside --hosts" in told[5]


def test_signal_while_hosts_are_reached(tmp_path: Path) -> None:
    """A host that does not answer is not waited for."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nsleep 600 & echo $! >{tmp_path}/pid; kill -USR1 $PPID; wait")
    ssh.chmod(0o755)
    with Launcher([SshPlace(HostEntry("far"), [str(ssh)])]) as job:
        before = signal.signal(signal.SIGUSR1, lambda *_: job.signal(signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt):
                job.connect()
        finally:
            signal.signal(signal.SIGUSR1, before)
    wait_until_gone([int((tmp_path / "pid").read_text())])


def test_what_cannot_start() -> None:
    with pytest.raises(LaunchError, match="localhost: there is no directory /does/not/exist"):
        launch(1, "true", cwd="/does/not/exist")
    with (
        Launcher([LocalPlace(HostEntry("x", python="/no/python"))]) as job,
        pytest.raises(LaunchError, match="cannot run /no/python: No such file"),
    ):
        job.connect()


def test_which_hosts_are_this_one() -> None:
    here = ("localhost", "127.0.0.1", "::1", os.uname().nodename)
    assert all(isinstance(place_for(HostEntry(name)), LocalPlace) for name in here)
    assert all(isinstance(place_for(HostEntry(name)), SshPlace) for name in ("strix-a", "me@localhost", "192.0.2.77"))


def test_lines_are_prefixed_coloured_and_kept(tmp_path: Path) -> None:
    sinks = {1: io.BytesIO(), 2: io.BytesIO()}
    output = RankOutput(11, dict(sinks), {1: True, 2: False}, tmp_path / "logs")
    output(0, 1, b"one\ntw")
    output(10, 2, b"other\n")
    output(0, 1, b"o\nrest")
    output.finish()
    assert sinks[1].getvalue() == b"".join(b"\x1b[36m[ 0] \x1b[0m" + word + b"\n" for word in (b"one", b"two", b"rest"))
    assert sinks[2].getvalue() == b"[10] other\n"
    assert (tmp_path / "logs" / "rank-0.log").read_bytes() == b"one\ntwo\nrest"
    assert (tmp_path / "logs" / "rank-10.log").read_bytes() == b"other\n"


def test_messages_come_through_in_pieces_and_behind_greetings() -> None:
    said = [protocol.Exited(0, -9), protocol.Printed(1, 2, b"\n{}\n\xff"), protocol.Refused("full")]
    stream = b"Welcome!\n" + protocol.GREETING + b"".join(map(protocol.encode, said))
    decoder = protocol.reports()
    assert [report for byte in stream for report in decoder.feed(bytes([byte]))] == said
    for wrong in (b"what?\n", b'{"op": "start"}\n', b'{"op": "signal", "number": 0}\n'):
        with pytest.raises(ValueError, match=r"malformed|missing required field|>= 1"):
            list(protocol.orders().feed(wrong))


def test_another_protocol_is_named(tmp_path: Path) -> None:
    """A supervisor of an earlier version, played by a shell script."""
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nprintf '%s' '{protocol.GREETING.decode()}'\necho '{{\"op\": \"hello\", \"protocol\": 1}}'\ncat"
    )
    python.chmod(0o755)
    place = LocalPlace(HostEntry("strix-b", python=str(python)))
    with Launcher([place]) as job, pytest.raises(LaunchError, match="strix-b has another version of Ferrule"):
        job.connect()
