"""A program of others under its guard: nothing of it outlives who started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.process import start
from ferrule.process.guarded import guarded

SLEEP = [sys.executable, "-IS", "-c", "import time; time.sleep(300)"]
DETACHED = f"""
import subprocess, sys, time
child = subprocess.Popen({SLEEP!r}, start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""
STARTER = f"""
import subprocess, sys, time
from ferrule.process import start
from ferrule.process.guarded import guarded
guard = start(guarded([sys.executable, "-IS", "-c", {DETACHED!r}]), stdin=subprocess.PIPE, tie=False)
print(guard.pid, flush=True)
time.sleep(300)
"""


def until_ended(pid: int) -> None:
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        import select

        assert select.select([watch], [], [], 30.0)[0], pid
    finally:
        os.close(watch)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's processes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_has_detached_itself_ends_with_the_starter(number: int) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        pids = sorted(int(starter.stdout.readline()) for _ in range(2))
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        starter.send_signal(number)
        for pid in pids:
            until_ended(pid)


def test_its_status_is_the_programs() -> None:
    for code, status in (("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)):
        line = guarded([sys.executable, "-IS", "-c", code])
        with start(line, stdin=subprocess.PIPE, tie=False) as guard:
            assert guard.wait(30) == status


def test_it_ends_when_the_input_does() -> None:
    with start(guarded(SLEEP), stdin=subprocess.PIPE, tie=False) as guard:
        guard.stdin.close()
        assert guard.wait(30) == 128 + signal.SIGTERM
