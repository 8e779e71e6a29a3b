"""Rank processes of this machine that are started before it is known what they run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from ferrule.engine.host.local_ranks import LocalPlanner, LocalStarter
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.model import demo_path, read_model
from ferrule.plan import make_plan


@pytest.fixture(autouse=True)
def idle_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that do nothing, at once."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def sleeping() -> set[int]:
    return {each.pid for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE}


def rank_options(ranks: int) -> RankOptions:
    plan = make_plan(read_model(str(demo_path())), tensor=ranks)
    threads = EngineOptions("demo").rank_threads(ranks)
    return RankOptions(str(demo_path()), "auto", plan, threads, 64, max_sequences=1, batch_tokens=64, end_tokens=())


def start(planner: LocalPlanner, ranks: int) -> set[int]:
    """What is left after a start of ``ranks``; they are ended."""

    async def run() -> set[int]:
        deployment = await planner.place(rank_options(ranks), None)
        started = await deployment.starter.start(deployment.options)
        left = sleeping()
        await started.stop(0)
        return left

    return asyncio.run(run())


def test_ranks_that_were_expected_are_those_that_start() -> None:
    planner = LocalPlanner()
    with planner.expecting(2, EngineOptions("demo")):
        expected = sleeping()
        assert len(expected) == 2
        assert start(planner, 2) == expected
    assert not sleeping()


def test_as_many_as_are_needed_take_the_place_of_others(tmp_path: Path) -> None:
    planner = LocalPlanner()
    with planner.expecting(1, EngineOptions("demo")):
        expected = sleeping()
        assert len(expected) == 1
        started = start(planner, 2)
    assert len(started) == 2
    assert not started & expected
    assert not sleeping()
    assert not list(tmp_path.glob("ferrule-*")), "logs are left"


def test_nothing_is_left_of_ranks_that_are_not_started(tmp_path: Path) -> None:
    planner = LocalPlanner()
    with pytest.raises(ValueError, match="no such model"), planner.expecting(2, EngineOptions("demo")):
        raise ValueError("no such model")
    assert not sleeping()
    assert not list(tmp_path.glob("ferrule-*")), "logs are left"


def test_ranks_that_were_told_otherwise_do_not_start() -> None:
    starter = LocalStarter()
    options = rank_options(1)
    starter.expect((1, options.threads, True))
    expected = sleeping()

    async def run() -> set[int]:
        started = await starter.start(options)
        left = sleeping()
        await started.stop(0)
        return left

    assert not asyncio.run(run()) & expected, "they were told to encrypt"
