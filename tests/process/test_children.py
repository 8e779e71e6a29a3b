"""Processes are started, watched and ended as a whole."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferrule.process import Children, Outputs, end_groups, start, when_ended

SECONDS = 20.0
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 60; done"


def wait_for(children, outputs, ready):
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline
        children.wait(deadline - time.monotonic(), outputs.fds)
        outputs.drain()
        children.poll()


def test_exit_codes_and_who_failed_first_are_kept_and_output_is_read_as_it_comes():
    heard = {}
    children = Children()
    outputs = Outputs(lambda rank, stream, data: heard.setdefault((rank, stream), bytearray()).extend(data))
    for rank, script in enumerate(("echo one; exit 0", "echo two >&2; exit 3", "read line || exit 4; sleep 60")):
        with outputs.of(rank) as (out, err):
            children.add(start(["sh", "-c", script], stdout=out, stderr=err))
    wait_for(children, outputs, lambda: not children.running)
    outputs.drain()
    assert tuple(children.codes) == (0, 3, 4)  # the last one had nothing to read
    assert children.first_failed in (1, 2)
    assert heard == {(0, 1): b"one\n", (1, 2): b"two\n"}
    assert outputs.fds == ()
    assert children.exit_fds == ()


def test_what_does_not_end_when_asked_is_killed_and_blames_none():
    children = Children()
    outputs = Outputs(lambda rank, stream, data: heard.append(rank))
    heard = []
    for rank in range(2):
        with outputs.of(rank) as (out, err):
            children.add(start(["sh", "-c", STUBBORN], stdout=out, stderr=err))
    wait_for(children, outputs, lambda: set(heard) == {0, 1})
    begin = time.monotonic()
    children.stop(0.2)
    assert 0.2 <= time.monotonic() - begin < SECONDS
    assert tuple(children.codes) == (-signal.SIGKILL,) * 2
    assert children.first_failed is None
    children.stop(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells in /proc what is open")
def test_no_descriptor_stays_open():
    before = len(list(Path("/proc/self/fd").iterdir()))
    outputs = Outputs(lambda rank, stream, data: None)
    for missing in (True, False):
        with outputs.of(0) as (out, err):
            if not missing:
                start(["true"], stdout=out, stderr=err).wait()
    outputs.drain()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(FileNotFoundError):
        start(["true"], cwd="/does/not/exist")


def test_groups_end_in_an_event_loop_too():
    async def scene():
        running = {}
        for script in ("sleep 60", STUBBORN):
            process = start(["sh", "-c", script], stdout=subprocess.PIPE)
            running[process.pid] = process
            when_ended(process, lambda code, pid=process.pid: running.pop(pid))
        stubborn = process
        assert await asyncio.to_thread(stubborn.stdout.readline) == b"ready\n"
        everyone = list(running.values())
        await end_groups(lambda: list(running), 0.3, SECONDS)
        assert not running
        assert [process.returncode for process in everyone] == [-signal.SIGTERM, -signal.SIGKILL]
        for process in everyone:
            process.stdout.close()

    asyncio.run(scene())
