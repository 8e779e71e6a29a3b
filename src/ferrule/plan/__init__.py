"""From a model and the ranks at hand to a plan: which rank holds what."""

from ferrule.model.family import Cuts
from ferrule.model.headers import Stored
from ferrule.model.hub import Hub
from ferrule.model.layer import (
    BUILT_IN,
    COMPACT,
    AttentionSpec,
    CachePolicy,
    Collective,
    ExpertsSpec,
    LayerSpec,
    LayerWeights,
    Share,
    Weights,
)
from ferrule.model.read import known_models, read_model, spec_of_tensors
from ferrule.model.spec import ModelSpec
from ferrule.model.split import HeadSplit, part_of, split_heads, split_layers
from ferrule.plan.cluster.file import parse_cluster, read_cluster, write_cluster
from ferrule.plan.cluster.live import (
    HostReport,
    cluster_of_lab,
    cluster_of_reports,
    cluster_of_standing_lab,
    live_cluster,
    report_text,
)
from ferrule.plan.cluster.profile import cluster_from_profile
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec, LinkSpec, RailSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.cost.runtime import BUILT_IN_ENGINE, RUNTIMES, Runtime
from ferrule.plan.device.measure import measure_device
from ferrule.plan.layout import (
    OBJECTIVES,
    Candidate,
    Layout,
    MemoryUse,
    Objective,
    Prediction,
    Stage,
    Term,
    Workload,
)
from ferrule.plan.make import make_plan, plan_of_layout
from ferrule.plan.plan import Plan, Shard, Strategy
from ferrule.plan.search.best import SearchResult, search
from ferrule.plan.search.shortfall import Shortfall, shortfall

__all__ = [
    "BUILT_IN",
    "BUILT_IN_ENGINE",
    "COMPACT",
    "OBJECTIVES",
    "RUNTIMES",
    "AttentionSpec",
    "CachePolicy",
    "Candidate",
    "ClusterSpec",
    "Collective",
    "Cuts",
    "DeviceSpec",
    "ExpertsSpec",
    "HeadSplit",
    "HostReport",
    "Hub",
    "LayerSpec",
    "LayerWeights",
    "Layout",
    "LinkSpec",
    "MemoryUse",
    "ModelSpec",
    "Objective",
    "Plan",
    "Prediction",
    "RailSpec",
    "Runtime",
    "SearchResult",
    "Shard",
    "Share",
    "Shortfall",
    "Stage",
    "Stored",
    "Strategy",
    "Term",
    "Weights",
    "Workload",
    "cluster_from_profile",
    "cluster_of_lab",
    "cluster_of_reports",
    "cluster_of_standing_lab",
    "known_models",
    "live_cluster",
    "make_plan",
    "measure_device",
    "parse_cluster",
    "part_of",
    "plan_of_layout",
    "predict",
    "read_cluster",
    "read_model",
    "report_text",
    "search",
    "shortfall",
    "spec_of_tensors",
    "split_heads",
    "split_layers",
    "write_cluster",
]
