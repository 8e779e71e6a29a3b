"""The ``ferrule`` command with a scripted engine in place of the real one; run as a program.

``FAKE_DELAY``: seconds per token. ``FAKE_FAIL``: fail after so many tokens. ``FAKE_SLOW_START``: seconds of loading.
"""

import asyncio
import os
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

from fake_engine import FakeEngine

import ferrule.engine
import ferrule.engine.host.processes
import ferrule.engine.host.speed
import ferrule.plan.device.measure
from ferrule.engine import Progress
from ferrule.errors import PlanError


async def no_speed(*_: Any) -> None:
    """A script has none."""


def no_device(*_: Any, **__: Any) -> Any:
    raise PlanError("a scripted engine runs nowhere")


async def start(options: Any, on_progress: Any = None, planner: Any = None, choose_plan: Any = None) -> FakeEngine:
    del planner, choose_plan
    on_progress(Progress(0, "load", 1 << 20, 2 << 20))
    on_progress(Progress(0, "load", 2 << 20, 2 << 20))
    await asyncio.sleep(float(os.environ.get("FAKE_SLOW_START", 0)))
    on_progress(Progress(1, "warm up"))
    fail = os.environ.get("FAKE_FAIL")
    name = options.name or options.model
    delay = float(os.environ.get("FAKE_DELAY", 0))
    adapters = tuple(each.name for each in options.adapters)
    return FakeEngine(name=name, delay=delay, fail_after=int(fail) if fail else None, adapters=adapters)


if __name__ == "__main__":
    ferrule.engine.start = start  # type: ignore[assignment]
    ferrule.engine.host.processes.expecting = lambda *_: nullcontext(Mock())  # type: ignore[assignment]
    ferrule.engine.host.speed.speed_of = no_speed  # type: ignore[assignment]
    ferrule.plan.device.measure.recall_device = no_device
    ferrule.plan.device.measure.measure_device = no_device
    from ferrule.cli.main import main

    main()
