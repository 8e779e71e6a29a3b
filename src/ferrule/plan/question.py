"""What is asked of the planner, and what makes one answer better than another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import ClusterSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.cost.runtime import BUILT_IN_ENGINE, Runtime
from ferrule.plan.layout import Candidate, Layout, Objective, Prediction, Workload
from ferrule.plan.search.best import SearchResult, search

SEEN = 64
"""Plans that are looked at, of which a few are shown."""


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
    "context": Aim(lambda prediction: float(prediction.largest_context), "tokens"),
    "energy": Aim(lambda prediction: prediction.joules, "J/token", less=True),
}


@dataclass(frozen=True)
class Question:
    """``lighter``: the same model with smaller weights, by the name of the format, the largest first."""

    model: ModelSpec
    cluster: ClusterSpec
    work: Workload = field(default_factory=Workload)
    objective: Objective = "latency"
    runtime: Runtime = BUILT_IN_ENGINE
    lighter: tuple[tuple[str, ModelSpec], ...] = ()

    @property
    def aim(self) -> Aim:
        return AIMS[self.objective]

    def value(self, prediction: Prediction) -> float | None:
        return self.aim.figure(prediction)

    def times_better(self, one: Prediction, other: Prediction) -> float | None:
        """How many times better ``one`` is; None where that is not known."""
        a, b = self.value(one), self.value(other)
        if a is None or b is None or a <= 0 or b <= 0:
            return None
        return b / a if self.aim.less else a / b

    def predicted(self, layout: Layout) -> Candidate:
        return Candidate(layout, predict(self.model, self.cluster, layout, self.work, self.runtime))

    def answers(self, *, runnable_only: bool = False) -> SearchResult:
        """Plans, the best first; `PlanError` as `search` raises it."""
        return search(
            self.model,
            self.cluster,
            self.work,
            self.objective,
            runtime=self.runtime,
            top=SEEN,
            runnable_only=runnable_only,
        )

    def best(self) -> Candidate | None:
        """The best plan that fits; one that the built-in engine can run, where that is asked for."""
        return self.answers(runnable_only=self.runtime is BUILT_IN_ENGINE).best

    def on(self, cluster: ClusterSpec) -> Question:
        return replace(self, cluster=cluster)

    def of(self, model: ModelSpec) -> Question:
        return replace(self, model=model)
