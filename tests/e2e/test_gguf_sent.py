"""A host without the GGUF file receives its slices of it, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from gguf_models import write
from test_shards_sent import PROMPT, Hosts, served

from ferrule.engine.shards.weight_files import read_layout

pytestmark = pytest.mark.slow

ROPE = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_a_host_without_the_file_gets_its_half(tmp_path: Path, emulated_hosts: None) -> None:
    wide = {"vocab_size": 512, "intermediate_size": 512, "hidden_size": 256, "head_dim": 32}
    scaled = {**ROPE, "original_max_position_embeddings": 256}
    file, model = write(
        "llama", tmp_path / "model", "Q8_0", **wide, rope_parameters=scaled, max_position_embeddings=512
    )
    model.generation_config.eos_token_id = None
    made = model.generate(torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False)
    with Hosts(tmp_path / "hosts") as lab:
        tokens, ranks = asyncio.run(served(file, lab))
        assert tokens == made[0, len(PROMPT) :].tolist()
        assert ranks[0].received_bytes == 0
        whole, head = file.stat().st_size, sum(len(each.head) for each in read_layout(file).files)
        assert 0.4 * whole < ranks[1].received_bytes - head < 0.6 * whole
        tokens, ranks = asyncio.run(served(file, lab))
        assert tokens == made[0, len(PROMPT) :].tolist()
        assert ranks[1].received_bytes == 0, "it is kept"
