"""From a model and the ranks at hand to a plan: which rank holds what."""

from ferrule.plan.cluster import ClusterSpec, DeviceSpec, LinkSpec, RailSpec
from ferrule.plan.cluster_file import parse_cluster, read_cluster, write_cluster
from ferrule.plan.cluster_live import (
    HostReport,
    cluster_of_lab,
    cluster_of_reports,
    cluster_of_standing_lab,
    live_cluster,
    report_text,
)
from ferrule.plan.cluster_profile import cluster_from_profile
from ferrule.plan.cost import predict
from ferrule.plan.device_measure import measure_device
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
from ferrule.plan.model import ModelSpec
from ferrule.plan.model_family import Cuts
from ferrule.plan.model_headers import Stored
from ferrule.plan.model_hub import Hub
from ferrule.plan.model_layer import (
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
from ferrule.plan.model_read import known_models, read_model, spec_of_tensors
from ferrule.plan.plan import Plan, Shard, Strategy
from ferrule.plan.runtime import BUILT_IN_ENGINE, RUNTIMES, Runtime
from ferrule.plan.search import SearchResult, search
from ferrule.plan.search_shortfall import Shortfall, shortfall
from ferrule.plan.split import HeadSplit, part_of, split_heads, split_layers

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
