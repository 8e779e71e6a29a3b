"""The driver makes no token of a step whose ranks are lost."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted_control import ScriptedControl

from ferrule.engine.devices import open_device
from ferrule.engine.messages import Add, Cancel
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.driver.loop import Driver
from ferrule.engine.rank.warm_up import Trial
from ferrule.engine.types import SamplingParams
from ferrule.errors import FabricError


def test_logits_of_devices_that_lost_a_peer_are_not_used() -> None:
    completed: list[Any] = []

    def check() -> None:
        raise FabricError("rank 1 is lost")

    driver = object.__new__(Driver)
    world = SimpleNamespace(check=check)
    runner: Any = SimpleNamespace(
        run=lambda batch, features: torch.empty(0, 3), device=open_device("cpu", 1), world=world
    )
    scheduler: Any = SimpleNamespace(
        by_identity={}, complete=lambda *given: completed.append(given) or [], load_of=lambda batch: (0, 0, 0.0)
    )
    driver.runner, driver.scheduler, driver.samplers, driver.since = runner, scheduler, {}, 0.0
    driver.speculation = None
    with pytest.raises(FabricError, match="rank 1 is lost"):
        driver._finish(Batch())
    assert completed == []
    world.check = lambda: None
    driver._finish(Batch())
    assert len(completed) == 1


class Counting:
    """Runner that runs nothing: batches that it was given, as all ranks are."""

    def __init__(self) -> None:
        self.device, self.plan = open_device("cpu", 1), SimpleNamespace(driver=0)
        self.world: Any = SimpleNamespace(check=lambda: None)
        self.batches: list[Batch] = []

    def streamed(self) -> None:
        return None

    def run(self, batch: Batch, features: Sequence[bytes] = ()) -> torch.Tensor:
        assert not features
        self.batches.append(batch)
        return torch.zeros(sum(span.sample for span in batch.spans), 8)

    def captured_room(self) -> int:
        return 0


@pytest.mark.parametrize("depth", [1, 2])
def test_no_rank_runs_a_sequence_further_whose_client_has_left(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """Steps are counted where the batches of all ranks are announced; in a pipeline ``depth`` of them are under way."""
    runner = Counting()
    control: Any = ScriptedControl(Add(number, (1, 2, 3), (), SamplingParams(ignore_eos=True)) for number in (1, 2))
    announced: list[Batch] = []
    monkeypatch.setattr(
        "ferrule.engine.rank.driver.loop.announce", lambda _world, _driver, batch: announced.append(batch)
    )
    options: Any = SimpleNamespace(
        plan=SimpleNamespace(pipeline=depth, driver=0), batch_tokens=64, context=512, end_tokens=(7,), adapters=(),
        inter_token_limit="auto", speculate=0,
    )  # fmt: skip
    driver = Driver(options, runner, control, Trial(4096, 8, 0.001, 64), 8)  # type: ignore[arg-type]
    for _ in range(10):
        driver.step()
    assert sum(span.sequence == 1 for batch in announced for span in batch.spans) > 3
    before, under_way = len(announced), len(driver.under_way)
    control.coming.append(Cancel(1))
    for _ in range(10):
        driver.step()
    assert under_way <= depth - 1
    after = [{span.sequence for span in batch.spans} for batch in announced[before:]]
    assert all(1 not in batch for batch in after)
    assert sum(2 in batch for batch in after) > 3, "the other one goes on"
