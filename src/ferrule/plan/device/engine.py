"""What a rank of the built-in engine needs on this machine beside a model's weights: memory, and time per operation."""

from __future__ import annotations

from ferrule.model.embedded import demo_path
from ferrule.model.read import read_model
from ferrule.plan.runtime import BUILT_IN_ENGINE, Runtime

ENGINE_RANK, ENGINE_STEPPING = "ferrule.engine.rank.worker", "ferrule.engine.rank.stepping"
"""What a rank of the built-in engine is, and what times one: imported by name in a process of its own, never here."""
PROGRAM = """
import importlib, sys
from ferrule.process.memory import private_bytes
rank, stepping = sys.argv[1:]
try:
    importlib.import_module(rank)
    import torch
    torch.ones(256, 256) @ torch.ones(256, 256)
except ImportError:
    import ferrule.fabric
    stepping = ""
print("private", private_bytes())
if stepping:
    token, resume = importlib.import_module(stepping).step_seconds()
    print("token", token)
    print("resume", resume)
"""


def eager_seconds(token_seconds: float, runtime: Runtime = BUILT_IN_ENGINE) -> float:
    """Per operation of an engine that takes so long for a token of the embedded model. Its few weights are in caches:
    all of that is starting operations."""
    model = read_model(str(demo_path()))
    return token_seconds / (sum(map(runtime.operations, model.decoder)) + runtime.end_operations)
