"""The driver makes no token of a step whose ranks are lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ferrule.engine.devices import open_device
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.worker import Driver
from ferrule.errors import FabricError


def test_logits_of_devices_that_lost_a_peer_are_not_used() -> None:
    completed: list[Any] = []

    def check() -> None:
        raise FabricError("rank 1 is lost")

    driver = object.__new__(Driver)
    world = SimpleNamespace(check=check)
    runner: Any = SimpleNamespace(run=lambda batch: torch.empty(0, 3), device=open_device("cpu", 1), world=world)
    scheduler: Any = SimpleNamespace(by_identity={}, complete=lambda *given: completed.append(given) or [])
    driver.runner, driver.scheduler, driver.samplers = runner, scheduler, {}
    with pytest.raises(FabricError, match="rank 1 is lost"):
        driver._finish(Batch())
    assert completed == []
    world.check = lambda: None
    driver._finish(Batch())
    assert len(completed) == 1
