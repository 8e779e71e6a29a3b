"""The local launcher: ranks start with what they need and never outlive their job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferrule.errors import ConfigError
from ferrule.launch import LocalLauncher

PYTHON = [sys.executable, "-I", "-S", "-c"]
GONE_SECONDS = 5.0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or after
        return False


def wait_until_gone(pids: list[int]) -> float:
    begin = time.monotonic()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() - begin < 10, "processes were left behind"
    return time.monotonic() - begin


def test_ranks_get_their_environment_and_output_goes_to_files(tmp_path: Path) -> None:
    program = (
        "import os, socket\n"
        "names = ('RANK', 'WORLD_SIZE', 'ADDRESS', 'KEY', 'LISTEN_FD')\n"
        "print(*(os.environ.get('FERRULE_' + name) for name in names), os.environ['MINE'], os.environ['OURS'])\n"
        "if 'FERRULE_LISTEN_FD' in os.environ:\n"
        "    listener = socket.socket(fileno=int(os.environ['FERRULE_LISTEN_FD']))\n"
        "    print('%s:%d' % listener.getsockname(), listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))\n"
    )
    mine = [{"MINE": "zero"}, {"MINE": "one"}]
    with LocalLauncher([*PYTHON, program], 2, env={"OURS": "all"}, rank_env=mine, output=tmp_path) as launcher:
        result = launcher.wait(20)
    assert (result.codes, result.first_failed, result.exit_code) == ((0, 0), None, 0)
    first, listening = (tmp_path / "rank-0.log").read_text().splitlines()
    second = (tmp_path / "rank-1.log").read_text().split()
    rank, world, address, key, _, mine_text, ours = first.split()
    assert (rank, world, mine_text, ours) == ("0", "2", "zero", "all")
    assert listening == f"{address} 1"
    assert len(bytes.fromhex(key)) == 32
    assert second == ["1", "2", address, key, "None", "one", "all"]


def test_a_rank_is_replaced_by_a_new_one_or_by_one_of_others_that_meet_at_the_same_place(tmp_path: Path) -> None:
    def told(rank: int, where: str) -> list[str]:
        log = tmp_path / where / f"rank-{rank}.log"
        deadline = time.monotonic() + 20
        while not log.read_text().endswith("\n"):
            assert time.monotonic() < deadline
        return log.read_text().split()

    program = (
        "import os, signal\n"
        "print(*(os.environ.get('FERRULE_' + name) for name in ('RANK', 'ADDRESS', 'KEY')), flush=True)\n"
        "signal.pause()\n"
    )
    with LocalLauncher([*PYTHON, program], 2, output=tmp_path / "one", lasting=True) as launcher:
        before, zero = launcher.pids, told(0, "one")
        launcher.replace(0, [])
        assert (launcher.pids[0] == before[0], launcher.pids[1]) == (False, before[1])
        assert told(0, "one") == zero
        others = LocalLauncher([*PYTHON, program], 2, output=tmp_path / "two", lasting=True, beside=launcher)
        with others:
            assert told(0, "two") == zero
            launcher.take(0, others)
            assert (launcher.pids[0], others.poll()) == (others.pids[0], (0, None))
        assert launcher.poll() == (None, None)
    assert None not in launcher.poll()


def test_outer_job_does_not_leak_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FERRULE_LISTEN_FD", "99")
    monkeypatch.setenv("FERRULE_LISTEN", "99")
    program = "import os; print(os.environ.get('FERRULE_LISTEN_FD', os.environ.get('FERRULE_LISTEN', 'none')))"
    with LocalLauncher([*PYTHON, program], 2, output=tmp_path) as launcher:
        launcher.wait(20)
    assert (tmp_path / "rank-1.log").read_text() == "none\n"
    assert (tmp_path / "rank-0.log").read_text() != "99\n"


def test_one_rank_that_fails_ends_the_others() -> None:
    with LocalLauncher(
        lambda rank: [*PYTHON, "raise SystemExit(7)" if rank == 1 else "input_ = __import__('signal').pause()"], 3
    ) as launcher:
        pids = launcher.pids
        result = launcher.wait(20)
    assert result.first_failed == 1
    assert result.exit_code == 7
    assert result.codes == (-signal.SIGTERM, 7, -signal.SIGTERM)
    assert not any(alive(pid) for pid in pids)


def test_killed_rank_gives_the_status_of_a_shell() -> None:
    with LocalLauncher(["sleep", "60"], 2) as launcher:
        os.kill(launcher.pids[0], signal.SIGKILL)
        result = launcher.wait(20)
    assert result.exit_code == 128 + signal.SIGKILL


def test_stop_is_quick_even_when_ranks_ignore_it_and_have_children(tmp_path: Path) -> None:
    program = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    launcher = LocalLauncher([*PYTHON, program], 2, output=tmp_path).start()
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    deadline = time.monotonic() + 10
    while not all(log.read_text().endswith("\n") for log in logs):
        assert time.monotonic() < deadline
    children = [int(log.read_text()) for log in logs]
    begin = time.monotonic()
    launcher.stop()
    launcher.stop()
    assert time.monotonic() - begin < GONE_SECONDS
    assert wait_until_gone([*launcher.pids, *children]) < GONE_SECONDS
    assert launcher.poll() == (-signal.SIGKILL, -signal.SIGKILL)
    assert launcher.first_failed is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process's life to its parent's")
def test_ranks_die_with_their_launcher_even_when_it_is_killed() -> None:
    program = (
        "import sys\n"
        "from ferrule.launch import LocalLauncher\n"
        "launcher = LocalLauncher(['sleep', '60'], 3).start()\n"
        "print(*launcher.pids, flush=True)\n"
        "launcher.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(pids) == 3
        launcher.kill()
        launcher.wait()
        assert wait_until_gone(pids) < GONE_SECONDS


def test_output_with_prefix(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    program = (
        "import os, sys\nrank = os.environ['FERRULE_RANK']\nprint('hello from', rank)\nsys.stderr.write('no end')\n"
    )
    with LocalLauncher([*PYTHON, program], 2, output="prefix") as launcher:
        launcher.wait(20)
    captured = capfdbinary.readouterr()
    assert sorted(captured.out.splitlines()) == [b"[0] hello from 0", b"[1] hello from 1"]
    assert sorted(captured.err.splitlines()) == [b"[0] no end", b"[1] no end"]


def test_pinning_and_inherited_descriptors(tmp_path: Path) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system cannot pin a process")
    cpu = min(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    program = "import os; os.write(int(os.environ['OUT']), str(sorted(os.sched_getaffinity(0))).encode())"
    with LocalLauncher(
        [*PYTHON, program], 1, cpus=[[cpu]], pass_fds=[[writer]], env={"OUT": str(writer)}, output=tmp_path
    ) as launcher:
        os.close(writer)
        launcher.wait(20)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == f"[{cpu}]"


def test_timeout_leaves_the_ranks_running() -> None:
    with LocalLauncher(["sleep", "60"], 2) as launcher:
        with pytest.raises(TimeoutError, match=r"still runs after 0\.05 s"):
            launcher.wait(0.05)
        assert launcher.poll() == (None, None)


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    with LocalLauncher(["/does/not/exist"], 2, output=tmp_path) as launcher:
        result = launcher.wait(20)
    assert result.exit_code == 127
    assert "/does/not/exist" in (tmp_path / f"rank-{result.first_failed}.log").read_text()


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="at least one rank"):
        LocalLauncher(["true"], 0)
    with pytest.raises(ConfigError, match="cpus has 1 entries for 2 ranks"):
        LocalLauncher(["true"], 2, cpus=[None])
