"""Rank processes of this machine that are started before it is known what they run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ferrule.engine.host import processes
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.placement import Loss
from ferrule.engine.host.processes import expecting, rank_threads
from ferrule.engine.messages import DeviceLost
from ferrule.engine.options import RankOptions
from ferrule.errors import EngineError
from ferrule.model import demo_path, read_model
from ferrule.plan import make_plan

PYTHON = sys.executable
SERVE = """
import sys
from ferrule.engine.host import processes

def show():
    print({"numpy", "ferrule.plan", "ferrule.fabric"} & set(sys.modules))

def expecting(*_):
    show()
    sys.exit()

show()
processes.expecting = expecting
from ferrule.cli.main import app
app(["serve", "demo", "--here", "--port", "0"])
"""
"""What is imported before it starts ranks."""


@pytest.fixture(autouse=True)
def idle_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that do nothing, at once."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)


def sleeping() -> set[int]:
    return {each.pid for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE}


def rank_options(ranks: int) -> RankOptions:
    plan = make_plan(read_model(str(demo_path())), tensor=ranks)
    threads = rank_threads(None, ranks)
    return RankOptions(str(demo_path()), "auto", plan, threads, 64, max_sequences=1, batch_tokens=64, end_tokens=())


def start(planner: LocalPlanner, ranks: int) -> set[int]:
    """Processes left after a start of ``ranks``; they are ended."""

    async def run() -> set[int]:
        deployment = await planner.place(rank_options(ranks), None)
        started = await deployment.starter.start(deployment.options)
        left = sleeping()
        await started.stop(0)
        return left

    return asyncio.run(run())


def test_ranks_that_were_expected_are_those_that_start() -> None:
    with expecting(2, None, None) as ranks:
        expected = sleeping()
        assert len(expected) == 2
        assert start(LocalPlanner(expected=ranks), 2) == expected
    assert not sleeping()


def test_a_lost_rank_is_replaced_by_a_standby_process_whose_place_is_filled_again() -> None:
    async def scene() -> None:
        planner = LocalPlanner(standby=True)
        deployment = await planner.place(rank_options(2), None)
        started = await deployment.starter.start(deployment.options)
        assert deployment.standby is not None
        try:
            ranks = sleeping()
            await deployment.standby.prepare(deployment)
            standby = sleeping() - ranks
            assert len(standby) == 2
            (ours,) = await started.replace([1], deployment)
            assert started.sockets[1] is ours
            left = sleeping()
            assert (len(left & ranks), len(left & standby), len(left)) == (1, 2, 3)
            await deployment.standby.prepare(deployment)
            assert len(sleeping()) == 4
            assert left < sleeping()
            loss = Loss(EngineError("gone"), (1,), ("",), crashed=True)
            assert await planner.keeping(deployment.options, deployment, loss) == deployment
            lost = DeviceLost("cuda:0", starting=True, others=())
            loss = replace(loss, devices=(("", lost),))
            assert await planner.keeping(deployment.options, deployment, loss) is None
        finally:
            await started.stop(0)
            await deployment.standby.close()
        assert not sleeping()

    asyncio.run(scene())


@pytest.mark.parametrize(("ranks", "encrypt"), [(1, None), (2, True)])
def test_those_of_another_kind_are_ended(ranks: int, encrypt: bool | None, tmp_path: Path) -> None:
    with expecting(ranks, None, encrypt) as others:
        expected = sleeping()
        assert len(expected) == ranks
        started = start(LocalPlanner(expected=others), 2)
    assert len(started) == 2
    assert not started & expected
    assert not sleeping()
    assert not list(tmp_path.glob("ferrule-*")), "logs are left"


def test_nothing_is_left_of_ranks_that_are_not_started(tmp_path: Path) -> None:
    with expecting(2, None, None):
        assert len(sleeping()) == 2
    assert not sleeping()
    assert not list(tmp_path.glob("ferrule-*")), "logs are left"


def test_more_than_there_are_cores_are_not_expected() -> None:
    with expecting(3, None, None) as ranks:
        assert ranks is None
        assert not sleeping()


def test_what_starts_them_waits_for_few_imports() -> None:
    done = subprocess.run([PYTHON, "-c", SERVE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["set()", "set()"]
