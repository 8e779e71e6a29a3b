"""Run a planned model: its shards, their weights, the KV cache, the scheduler and the ranks."""

from ferrule.engine.host.local import LocalEngine, start
from ferrule.engine.host.placement import Deployment, Loss, Planner, RankStarter, StartedRanks
from ferrule.engine.options import EngineOptions, RankOptions
from ferrule.engine.types import (
    Engine,
    FinishReason,
    Health,
    Progress,
    ProgressCallback,
    RankInfo,
    Recovery,
    SamplingParams,
    State,
    Token,
    Tokenizer,
)

__all__ = [
    "Deployment",
    "Engine",
    "EngineOptions",
    "FinishReason",
    "Health",
    "LocalEngine",
    "Loss",
    "Planner",
    "Progress",
    "ProgressCallback",
    "RankInfo",
    "RankOptions",
    "RankStarter",
    "Recovery",
    "SamplingParams",
    "StartedRanks",
    "State",
    "Token",
    "Tokenizer",
    "start",
]
