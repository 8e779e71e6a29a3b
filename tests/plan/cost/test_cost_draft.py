"""Memory of a draft model: all of it on the driver, in every count of the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_cost_predictor import MODEL, ask, cluster, pipeline, tensor

from ferrule.errors import PlanError
from ferrule.plan import BUILT_IN_ENGINE, Plan, Workload, make_plan, predict, search
from ferrule.plan.cost import largest_context, memory_of
from ferrule.plan.one_machine import require_room

DRAFT = replace(MODEL, decoder=MODEL.decoder[:6])
DRAFTED = replace(MODEL, draft=DRAFT)
WORK = Workload(context=4096, concurrency=2)


@pytest.mark.parametrize("plan", [pipeline(1), pipeline(2), tensor(2)])
def test_the_driver_holds_it_whole(plan: Plan) -> None:
    where = cluster(2)
    with_it = memory_of(ask(where, WORK, runtime=BUILT_IN_ENGINE, model=DRAFTED), plan)
    without = memory_of(ask(where, WORK, runtime=BUILT_IN_ENGINE), plan)
    for rank, (more, less) in enumerate(zip(with_it, without, strict=True)):
        drafts = rank == plan.driver
        assert more.weights - less.weights == DRAFT.in_engine.bytes * drafts
        cache = DRAFT.cache_bytes(WORK.context, BUILT_IN_ENGINE.cache_of(DRAFT)) * WORK.concurrency
        assert more.cache - less.cache == pytest.approx(cache * drafts, abs=1)


def test_it_leaves_less_for_contexts_and_takes_no_time() -> None:
    work, where = Workload(context=16), cluster(1, memory=12 << 30)
    one, other = (ask(where, work, runtime=BUILT_IN_ENGINE, model=each) for each in (DRAFTED, MODEL))
    assert 0 < largest_context(one, pipeline(1)) < largest_context(other, pipeline(1))
    assert predict(one, pipeline(1)).token_seconds == predict(other, pipeline(1)).token_seconds


def test_a_model_that_fits_alone_is_split_beside_one() -> None:
    where = cluster(2, memory=MODEL.bytes + (1 << 30))
    alone, drafted = (
        search(ask(where, Workload(context=64, prompt=64), runtime=BUILT_IN_ENGINE, model=each)).single
        for each in (MODEL, DRAFTED)
    )
    assert alone.prediction.fits
    assert not drafted.prediction.fits
    found = search(ask(where, Workload(context=64, prompt=64), runtime=BUILT_IN_ENGINE, model=DRAFTED)).best
    assert found is not None
    assert found.plan.world_size == 2


def test_ranks_are_started_only_where_it_has_room() -> None:
    plan = make_plan(DRAFTED)
    free = {"rank-0": MODEL.in_engine.bytes + DRAFT.in_engine.bytes}
    require_room(DRAFTED, plan, ["rank-0"], free)
    with pytest.raises(PlanError, match="does not fit"):
        require_room(DRAFTED, plan, ["rank-0"], {"rank-0": free["rank-0"] - 1})
