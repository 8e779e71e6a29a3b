"""Run a planned model: its shards, their weights, the KV cache, the scheduler and the ranks."""

from ferrule.engine.host.local import LocalEngine, start
from ferrule.engine.options import EngineOptions
from ferrule.engine.types import (
    Engine,
    FinishReason,
    Health,
    Progress,
    RankInfo,
    Recovery,
    SamplingParams,
    Token,
    Tokenizer,
)

__all__ = [
    "Engine",
    "EngineOptions",
    "FinishReason",
    "Health",
    "LocalEngine",
    "Progress",
    "RankInfo",
    "Recovery",
    "SamplingParams",
    "Token",
    "Tokenizer",
    "start",
]
