"""Run a planned model: its shards, their weights, the KV cache, the scheduler and the ranks.

The names below are imported when they are first used: rank processes are started before the planner is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule.engine.abilities import Abilities
    from ferrule.engine.host.local import LocalEngine, start
    from ferrule.engine.options import EngineOptions
    from ferrule.engine.turn import Turn
    from ferrule.engine.types import (
        ChatMessage,
        Constraint,
        Engine,
        Feature,
        FinishReason,
        HandOverUse,
        Health,
        ImageInput,
        ImagePrompt,
        PrefixUse,
        Progress,
        PromptToken,
        RankInfo,
        Recovery,
        ReplicaHealth,
        SamplingParams,
        SpeculationUse,
        StreamUse,
        Token,
        Tokenizer,
        Vector,
    )
    from ferrule.engine.vectors import normalized

__all__ = [
    "Abilities",
    "ChatMessage",
    "Constraint",
    "Engine",
    "EngineOptions",
    "Feature",
    "FinishReason",
    "HandOverUse",
    "Health",
    "ImageInput",
    "ImagePrompt",
    "LocalEngine",
    "PrefixUse",
    "Progress",
    "PromptToken",
    "RankInfo",
    "Recovery",
    "ReplicaHealth",
    "SamplingParams",
    "SpeculationUse",
    "StreamUse",
    "Token",
    "Tokenizer",
    "Turn",
    "Vector",
    "normalized",
    "start",
]

_ELSEWHERE = {"LocalEngine": "host.local", "start": "host.local", "EngineOptions": "options"}
_ELSEWHERE |= {"Abilities": "abilities", "Turn": "turn", "normalized": "vectors"}
"""Modules of those that are not in `ferrule.engine.types`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'types')}"), name)
