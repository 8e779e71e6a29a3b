"""Question to the planner, and objectives by which one answer is better than another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ferrule.errors import PlanError
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.prediction import Prediction
from ferrule.plan.runtime import BUILT_IN_ENGINE, ON_ACCELERATORS, Runtime

Objective = Literal["latency", "throughput", "ttft", "answer", "context", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "ttft", "answer", "context", "energy")


@dataclass(frozen=True)
class Workload:
    """``context``: tokens of one sequence for which there must be room. ``prompt``: tokens whose processing the time
    to first token counts. ``concurrency``: sequences at once. ``depth``: tokens that are already there when a token is
    timed; None: the prompt. ``kwh_price``: US dollars per kilowatt hour, if the price of tokens is to count it.
    ``answer``: tokens of an answer, where the time of a whole one counts."""

    context: int = 4096
    prompt: int = 512
    concurrency: int = 1
    depth: int | None = None
    kwh_price: float | None = None
    answer: int = 256

    def __post_init__(self) -> None:
        for name in ("context", "prompt", "concurrency", "answer"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.depth is not None and self.depth < 0:
            raise PlanError(f"depth must be at least 0, not {self.depth}")
        if self.kwh_price is not None and self.kwh_price < 0:
            raise PlanError(f"kwh_price must be at least 0, not {self.kwh_price}")

    @property
    def seen(self) -> int:
        """Tokens before the one that is timed."""
        return self.prompt if self.depth is None else self.depth


@dataclass(frozen=True)
class Aim:
    """``figure`` of a prediction, in ``unit``; None where it is not known. ``less``: less of it is better."""

    figure: Callable[[Prediction], float | None]
    unit: str
    less: bool = False


AIMS: dict[Objective, Aim] = {
    "latency": Aim(lambda prediction: prediction.tokens_per_s, "tok/s"),
    "throughput": Aim(lambda prediction: prediction.throughput, "tok/s"),
    "ttft": Aim(lambda prediction: prediction.ttft_seconds, "s", less=True),
    "answer": Aim(lambda prediction: prediction.answer_seconds, "s", less=True),
    "context": Aim(lambda prediction: float(prediction.largest_context), "tokens"),
    "energy": Aim(lambda prediction: prediction.joules, "J/token", less=True),
}


@dataclass(frozen=True)
class Question:
    """All that a plan depends on: ``model``, ``cluster``, ``work``, ``objective`` and ``runtime`` (the engine).

    ``lighter``: the same model with smaller weights, by the name of the format, the largest first; what may be told
    would help. ``runnable_only``: leave out plans that the built-in engine cannot run.
    """

    model: ModelSpec
    cluster: ClusterSpec
    work: Workload = field(default_factory=Workload)
    objective: Objective = "latency"
    runtime: Runtime = BUILT_IN_ENGINE
    lighter: tuple[tuple[str, ModelSpec], ...] = ()
    runnable_only: bool = False

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise PlanError(f"objective must be one of {', '.join(OBJECTIVES)}, not {self.objective!r}")

    @property
    def engine(self) -> Runtime:
        """``runtime`` as it computes on the cluster's devices."""
        if self.runtime is BUILT_IN_ENGINE and any(device.accelerated for device in self.cluster.devices):
            return ON_ACCELERATORS
        return self.runtime

    @property
    def held(self) -> ModelSpec:
        """``model`` as it lies in the memory of ``runtime``."""
        return self.runtime.held(self.model)

    @property
    def aim(self) -> Aim:
        return AIMS[self.objective]

    def batches(self, stages: int) -> tuple[int, int]:
        """Number of batches on their way through so many stages in a step, and the sequences of each."""
        concurrency = self.work.concurrency
        batches = min(stages, concurrency) if self.runtime.batches else 1
        return batches, -(-concurrency // batches)

    def value(self, prediction: Prediction) -> float | None:
        return self.aim.figure(prediction)

    def times_better(self, one: Prediction, other: Prediction) -> float | None:
        """Factor by which ``one`` is better; None where that is not known."""
        a, b = self.value(one), self.value(other)
        if a is None or b is None or a <= 0 or b <= 0:
            return None
        return b / a if self.aim.less else a / b

    def on(self, cluster: ClusterSpec) -> Question:
        return replace(self, cluster=cluster)

    def of(self, model: ModelSpec) -> Question:
        return replace(self, model=model)

    def with_work(self, **changes: Any) -> Question:
        """``changes``: of fields of `Workload`."""
        return replace(self, work=replace(self.work, **changes))
