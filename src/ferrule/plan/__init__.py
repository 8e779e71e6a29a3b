"""From a question (model, machines, work, objective, engine) to plans, the best first."""

from ferrule.plan.cluster import ClusterSpec, DeviceSpec, PairSpec, RailSpec, read_cluster
from ferrule.plan.cost import BLOCK_PAGES, PAGE_TOKENS, predict, predicted, shares_out
from ferrule.plan.kernels import Kernels
from ferrule.plan.one_machine import plan_machine, rank_memory, require_room, split_advice, times_as_fast
from ferrule.plan.plan import Plan, Shard, Stage, make_plan, shares_by, split_flags
from ferrule.plan.prediction import Candidate, Prediction, Term
from ferrule.plan.question import Objective, Question, Workload
from ferrule.plan.runtime import BUILT_IN_ENGINE, CAPTURED_SHARE, RUNTIMES, STREAMED, Runtime, runtime_named
from ferrule.plan.saved import SavedPlan, parse_plan, read_plan
from ferrule.plan.search import SearchResult, best_plan, search, search_apart, with_apart

__all__ = [
    "BLOCK_PAGES",
    "BUILT_IN_ENGINE",
    "CAPTURED_SHARE",
    "PAGE_TOKENS",
    "RUNTIMES",
    "STREAMED",
    "Candidate",
    "ClusterSpec",
    "DeviceSpec",
    "Kernels",
    "Objective",
    "PairSpec",
    "Plan",
    "Prediction",
    "Question",
    "RailSpec",
    "Runtime",
    "SavedPlan",
    "SearchResult",
    "Shard",
    "Stage",
    "Term",
    "Workload",
    "best_plan",
    "make_plan",
    "parse_plan",
    "plan_machine",
    "predict",
    "predicted",
    "rank_memory",
    "read_cluster",
    "read_plan",
    "require_room",
    "runtime_named",
    "search",
    "search_apart",
    "shares_by",
    "shares_out",
    "split_advice",
    "split_flags",
    "times_as_fast",
    "with_apart",
]
