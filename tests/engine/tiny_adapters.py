"""Small LoRA adapters with random matrices, saved by PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = ("gate_proj", "up_proj", "down_proj")


def make_adapter(base: Path, directory: Path, targets: Sequence[str] = ATTENTION + DENSE, **settings: Any) -> Path:
    """An adapter of the model in ``base``, which changes its logits a lot."""
    given = {"r": 4, "lora_alpha": 12, "target_modules": list(targets), **settings}
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LoraConfig(**given))
    generator = torch.Generator().manual_seed(sum(directory.name.encode()))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    model.save_pretrained(directory)
    return directory


def adapted(base: Path, adapter: Path | None) -> Any:
    """The model as PEFT and transformers compute it."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    tokens = model.generate(input_ids=torch.tensor([list(prompt)]), max_new_tokens=count, do_sample=False)
    return list(tokens[0, len(prompt) :].tolist())
