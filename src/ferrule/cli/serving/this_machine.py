"""This machine as `ferrule serve` plans for it and predicts its speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ferrule.errors import FerruleError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.model import ModelSpec
    from ferrule.plan import DeviceSpec, Plan


MEASURING = "Measuring this machine, once in 30 days …"


class ThisMachine:
    """Device description of this machine, with ``threads`` for a rank (None: all cores), as it was measured in the last
    30 days; ``device`` is None until `plan` has it measured, and where that fails. ``copies``: of the model,
    which share it."""

    def __init__(self, console: Console, threads: int | None, copies: int = 1) -> None:
        from ferrule.plan.device.measure import recall_device

        self._console, self._threads, self._copies = console, threads, copies
        self._failed = False
        self.device = self._told(lambda: recall_device(threads=threads, unit="cpu"))

    def plan(self, model: ModelSpec, *, before_measuring: Callable[[], None], stream: bool = False) -> Plan:
        """The planner's choice for ``model``; one rank where nothing can be told of this machine. Where it has to be
        measured, which takes seconds, ``before_measuring`` is called first. ``stream``: as of
        `plan_machine`. Raises `PlanError` where the model cannot be held."""
        from ferrule.agent.device import RANK
        from ferrule.plan import make_plan, plan_machine
        from ferrule.plan.cluster import machine_of_ranks
        from ferrule.plan.cost import calibrated
        from ferrule.plan.device.measure import measure_device

        if self.device is None and not self._failed:
            before_measuring()
            self._console.print(MEASURING, style="dim", highlight=False)
            self.device = self._told(lambda: measure_device(rank=RANK, threads=self._threads, unit="cpu"))
        if self.device is None:
            return make_plan(model, tensor=1, pipeline=1)
        return plan_machine(model, machine_of_ranks(calibrated(self.device), self._copies).devices[0], stream=stream)

    def _told(self, ask: Callable[[], DeviceSpec | None]) -> DeviceSpec | None:
        try:
            return ask()
        except (FerruleError, OSError, RuntimeError) as error:  # serving goes on without a prediction
            self._failed = True
            self._console.print(f"No prediction: {error}", style="dim", highlight=False)
            return None
