"""A benchmark survives what the processes of a contestant can do to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferrule.bench.fabric.job import Job, JobError
from ferrule.bench.fabric.sweep import Cell, Contestant
from ferrule.launch import LocalLauncher

RANK = """
import os, socket, sys, time
rank = int(os.environ["FERRULE_RANK"])
control = socket.socket(socket.AF_UNIX)
control.connect(sys.argv[1])
lines = control.makefile("rw")
def say(text):
    print(text, file=lines, flush=True)
say(f"rank {rank}")
for task in lines:
"""
CELL = Cell("all_gather", 64, "float32", 2)
WHO = Contestant("gloo", "tcp")


@contextmanager
def started(folder: Path, program: str) -> Iterator[Job]:
    """Two ranks that run ``program``."""

    def launch(control: Path, logs: Path) -> LocalLauncher:
        return LocalLauncher([sys.executable, "-S", "-c", program, str(control)], 2, output=logs).start()

    job = Job(folder / "job", 2, launch)
    try:
        yield job
    finally:
        job.close()


@contextmanager
def answering(folder: Path, answer: str) -> Iterator[Job]:
    """Two ranks that run the statement ``answer`` for every task."""
    with started(folder, f"{RANK}    {answer}\n") as job:
        job.meet(time.monotonic() + 30)
        yield job


def test_rank_0_tells_its_samples(tmp_path: Path) -> None:
    with answering(tmp_path, "say('ok' if rank else 'ok 1.5 2.5')") as job:
        assert job.play(WHO, CELL, 2, 30) == [1.5, 2.5]
    with answering(tmp_path / "again", "say('error ' + task)") as job, pytest.raises(JobError) as caught:
        job.play(WHO, CELL, 2, 30)
    assert str(caught.value) == "all_gather 8 float32 2 gloo tcp"


def test_an_error_of_all_ranks_leaves_them_usable(tmp_path: Path) -> None:
    with answering(tmp_path, "say('error I cannot' if 'all_gather' in task else 'ok 1')") as job:
        with pytest.raises(JobError, match="I cannot") as caught:
            job.play(WHO, CELL, 1, 30)
        assert not caught.value.lost
        assert job.play(WHO, Cell("broadcast", 64, "float32", 2), 1, 30) == [1.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("say('error I cannot' if rank else 'ok 1')", "I cannot"),
        ("sys.exit('out of luck') if rank else time.sleep(60)", "(?s)ended on rank 1.*out of luck"),
        ("time.sleep(60) if rank else say('ok 1')", "gave no answer in time"),
    ],
)
def test_a_rank_that_fails_alone_loses_the_job(tmp_path: Path, answer: str, message: str) -> None:
    with answering(tmp_path, answer) as job, pytest.raises(JobError, match=message) as caught:
        job.play(WHO, CELL, 1, 2)
    assert caught.value.lost


def test_ranks_that_do_not_start_say_why(tmp_path: Path) -> None:
    program = "import sys; sys.exit('no such library')"
    with started(tmp_path, program) as job, pytest.raises(JobError, match=r"(?s)did not start.*no such library"):
        job.meet(time.monotonic() + 30)
