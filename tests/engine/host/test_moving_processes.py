"""A model that moves in mid-answer, its ranks as processes: its answer goes on with the caches of the old ranks."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace

import pytest

from ferrule.engine import EngineOptions, SamplingParams, start
from ferrule.engine.host import migration
from ferrule.engine.host.local_ranks import LocalPlanner
from ferrule.engine.host.placement import Deployment
from ferrule.engine.options import RankOptions
from ferrule.model import ModelSpec
from ferrule.plan import make_plan

SECONDS = 120.0
PROMPT = tuple(3 + place * 7 % 500 for place in range(200))
TOKENS = 700
MOVED = re.compile(r"caches moved: ([\d,]+) of ([\d,]+) tokens")


class Restless(LocalPlanner):
    """One that has a better place, with so many ranks for each layer, once it is told so."""

    def __init__(self, spec: ModelSpec, ranks: int) -> None:
        super().__init__()
        self._better, self.told = make_plan(spec, tensor=ranks), False

    async def better(self, options: RankOptions, now: Deployment) -> Deployment | None:
        if not self.told or now.options.plan == self._better:
            return None
        return Deployment(replace(options, plan=self._better), self._starter, self._starter)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_an_answer_goes_on_with_the_caches_of_ranks_that_end(
    before: int, after: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("PREPARE_SECONDS", "LOOK_SECONDS", "GRACE_SECONDS", "READY_SECONDS"):
        monkeypatch.setattr(migration, name, 0.05)
    caplog.set_level(logging.INFO)
    options = EngineOptions("demo", before, dtype="float32", threads=1, self_test=False)
    planners: list[Restless] = []

    def planner(model: object) -> Restless:
        planners.append(Restless(model.spec, after))  # type: ignore[attr-defined]
        return planners[0]

    async def body() -> tuple[list[int], list[int], list[int]]:
        engine = await start(options, planner=planner)
        try:
            params = SamplingParams(TOKENS, temperature=0.0, ignore_eos=True)
            still = [token.id async for token in engine.generate(PROMPT, params)]
            old, moved = [rank.pid for rank in engine.ranks], []
            async for token in engine.generate((*PROMPT[:-1], 9), params):
                moved.append(token.id)
                planners[0].told = len(moved) > 100
            async for token in engine.generate((*PROMPT[:-1], 9), params):
                still.append(token.id)
            assert not {rank.pid for rank in engine.ranks} & set(old)
            assert len(engine.ranks) == after
        finally:
            await engine.close()
        return still[:TOKENS], still[TOKENS:], moved

    other, again, moved = asyncio.run(asyncio.wait_for(body(), SECONDS))
    assert moved == again
    assert len(other) == len(moved) == TOKENS
    found = MOVED.search(caplog.text)
    assert found is not None, caplog.text
    assert int(found[1].replace(",", "")) == int(found[2].replace(",", "")) >= 256
