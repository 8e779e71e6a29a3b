"""Every required architecture over real processes and the native fabric."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import REQUIRED, make
from transformers import AutoModelForCausalLM

from ferrule.launch import LocalLauncher

pytestmark = pytest.mark.slow


def prepare(names: tuple[str, ...], models: Path) -> None:
    for name in names:
        directory = make(name, models / name)
        ids = torch.randint(3, 131, (1, 20), generator=torch.Generator().manual_seed(2))
        with torch.inference_mode():
            logits = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()(ids).logits[0]
        torch.save({"ids": ids, "logits": logits}, directory / "inputs.pt")


def differences(models: Path, out: Path, ranks: int, transport: str) -> list[dict[str, float | None]]:
    out.mkdir()
    script = Path(__file__).with_name("parity_rank.py")
    env = {"OMP_NUM_THREADS": "1", "FERRULE_TRANSPORT": transport}
    job = LocalLauncher(
        [sys.executable, str(script), str(models), str(out)], ranks, env=env, output=out / "logs"
    ).start()
    with job:
        result = job.wait(timeout=300)
    logs = "\n".join(log.read_text() for log in sorted((out / "logs").iterdir()))
    assert result.exit_code == 0, logs
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def test_two_ranks_give_the_logits_of_one_process_over_tcp(tmp_path: Path) -> None:
    prepare(REQUIRED, tmp_path / "models")
    first, second = differences(tmp_path / "models", tmp_path / "out", 2, "tcp")
    assert len(first) == len(second) == 2 * len(REQUIRED)
    for found in (first, second):  # the first of two tensor parallel ranks is the driver, the second of two stages
        seen = {what: value for what, value in found.items() if value is not None}
        assert len(seen) == len(REQUIRED)
        assert all(value < 1e-4 for value in seen.values()), seen


def test_two_by_two_ranks_give_the_logits_of_one_process(tmp_path: Path) -> None:
    prepare(("llama", "qwen3_moe"), tmp_path / "models")
    found = differences(tmp_path / "models", tmp_path / "out", 4, "auto")
    assert [all(value is not None for value in one.values()) for one in found] == [False, False, True, False]
    assert all(value is not None and value < 1e-4 for value in found[2].values()), found[2]
