"""The peer in `ferrule bench engine`: ``python -m ferrule.bench.engine.transformers_rank MODEL FD``.

transformers as its documentation uses it; with a world of more than one rank, its own tensor parallelism over Gloo.
Reads lines from the socket FD, tokens of a prompt and of its answer, and answers with a JSON list of seconds per token.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import transformers
from transformers import AutoModelForCausalLM, DynamicCache


def main(arguments: list[str]) -> None:
    directory, control = arguments[0], socket.socket(fileno=int(arguments[1]))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.logging.set_verbosity_error()
    options = {}
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        from transformers.distributed import DistributedConfig

        dist.init_process_group("gloo")
        options["distributed_config"] = DistributedConfig(tp_size=world)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", **options).eval()
    control.sendall(b"[]\n")
    for line in control.makefile():
        seconds = generate(model, *map(int, line.split()))
        control.sendall(json.dumps(seconds).encode() + b"\n")


def generate(model: torch.nn.Module, prompt: int, tokens: int) -> list[float]:
    """Greedy tokens after a prompt; the seconds of each."""
    cache = DynamicCache(config=model.config)
    ids = torch.arange(3, 3 + prompt).unsqueeze(0)
    seconds = []
    with torch.inference_mode():
        for number in range(tokens):
            begin = time.perf_counter()
            seen = 0 if number == 0 else prompt + number - 1
            positions = torch.arange(seen, seen + ids.shape[1]).unsqueeze(0)
            out = model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1:].argmax(-1)
            seconds.append(time.perf_counter() - begin)
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
