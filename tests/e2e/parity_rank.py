"""One rank of the end-to-end parity test: ``python parity_rank.py MODELS_DIR``, started by the launcher.

For every model below MODELS_DIR (each with inputs.pt: token ids and transformers' logits) it builds this rank's part
over the native fabric, by every split that the number of ranks allows, and prints the largest difference as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

import ferrule.engine.rank.worker_process  # noqa: F401  # models are imported as in the process of a rank
from ferrule import fabric
from ferrule.engine.devices import open_device
from ferrule.engine.rank.model import build
from ferrule.engine.source import describe, read_config
from ferrule.plan import Plan, make_plan

PIECES = ((0, 13), (13, 19), (19, 20))


def difference(directory: Path, plan: Plan, world: fabric.Group) -> float | None:
    """The largest deviation of this rank's logits from transformers'; None on ranks that see no logits."""
    saved = torch.load(directory / "inputs.pt")
    ids, expected = saved["ids"], saved["logits"]
    shard = plan.shards[world.rank]
    stage = world.split(color=shard.stage, key=shard.part)
    assert stage is not None
    with stage, torch.inference_mode():
        model = build(directory, "float32", shard, stage, open_device("cpu", 1), lambda done, total: None)
        worst = 0.0
        for first, last in PIECES:
            count = last - first
            inputs = ids[:, first:last]
            if not shard.has_embedding:
                inputs = torch.empty(1, count, model.hidden_size)
                world.recv(inputs, src=world.rank - plan.tensor)
            with model.cache.batch([(1, first, count)]):
                out = model.forward(inputs, torch.arange(first, last).unsqueeze(0), torch.arange(count))
            if world.rank == plan.driver:
                worst = max(worst, float((out - expected[first:last]).abs().max()))
            elif not shard.has_head:
                world.send(out.contiguous(), dst=world.rank + plan.tensor)
        world.barrier()
    return worst if world.rank == plan.driver else None


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    found: dict[str, float | None] = {}
    with fabric.init(strict=True, timeout=120) as world:
        splits = [(2, 1), (1, 2)] if world.size == 2 else [(2, 2)]
        for directory in sorted(Path(sys.argv[1]).iterdir()):
            spec = describe(directory, read_config(directory))
            for tensor, pipeline in splits:
                plan = make_plan(spec, tensor=tensor, pipeline=pipeline)
                found[f"{directory.name} tp{tensor} pp{pipeline}"] = difference(directory, plan, world)
    Path(sys.argv[2]).joinpath(f"rank-{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
