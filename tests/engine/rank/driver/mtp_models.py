"""Tiny models with a layer for multi-token prediction, and what that layer says by the published formula."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import make
from torch import Tensor
from transformers import AutoModelForCausalLM

LAYERS = 2
_BY_LAYER = ("layer_types", "mlp_layer_types")


def make_mtp(name: str, directory: Path, *, echoes: bool = False, **changes: Any) -> Path:
    """Save a random model of architecture ``name`` that has such a layer behind its others.

    ``echoes``: no layer adds anything to a token's embedding, and what enters the extra one is that too: so what the
    model says depends on its last token alone, and the extra layer knows it."""
    make(name, directory, num_hidden_layers=LAYERS + 1, **changes)
    (file,) = directory.glob("*.safetensors")
    tensors = load_file(file)
    width = tensors["model.norm.weight"].shape[0]
    own = f"model.layers.{LAYERS}"
    generator = torch.Generator().manual_seed(1)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{own}.{norm}.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
    tensors[f"{own}.eh_proj.weight"] = 0.15 * torch.randn(width, 2 * width, generator=generator)
    for copy, of in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):  # as makers publish it
        tensors[f"{own}.{copy}.weight"] = tensors[f"{of}.weight"].clone()
    if echoes:
        tensors |= {
            key: torch.zeros_like(each) for key, each in tensors.items() if "o_proj" in key or "down_proj" in key
        }
        tensors[f"{own}.eh_proj.weight"] = torch.cat((torch.eye(width), torch.zeros(width, width)), dim=1)
        tensors[f"{own}.enorm.weight"] = torch.ones(width)
        tensors[f"{own}.shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, file, {"format": "pt"})
    config = directory / "config.json"
    told = json.loads(config.read_text())
    told |= {each: told[each][:LAYERS] for each in _BY_LAYER if told.get(each)}
    told |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    told.pop("num_mtp_layers", None)
    config.write_text(json.dumps(told))
    return directory


class Formula:
    """The layer of ``directory`` by formulas 21 to 23 of the DeepSeek-V3 Technical Report (2024), in the order in which
    weights are stored; the layer itself, its embedding, output matrix and rotary positions are transformers'."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        torch.set_num_threads(1)  # several wait for each other longer than they compute
        with_it = Path(shutil.copytree(directory, scratch))
        config = with_it / "config.json"
        told = json.loads(config.read_text())
        told |= {each: [*told[each], told[each][-1]] for each in _BY_LAYER if told.get(each)}
        config.write_text(json.dumps(told | {"num_hidden_layers": LAYERS + 1}))
        made: Any = AutoModelForCausalLM
        given = {"dtype": torch.float32, "attn_implementation": "eager"}
        self.model = made.from_pretrained(directory, **given).eval()
        self.block = made.from_pretrained(with_it, **given).eval().model.layers[LAYERS]
        (file,) = directory.glob("*.safetensors")
        self.own = {
            key.removeprefix(f"model.layers.{LAYERS}."): each
            for key, each in load_file(file).items()
            if key.startswith(f"model.layers.{LAYERS}.")
        }

    def norm(self, name: str, x: Tensor) -> Tensor:
        eps = self.model.config.rms_norm_eps
        return self.own[f"{name}.weight"] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    def hidden(self, tokens: list[int]) -> Tensor:
        """What the model's last norm gives of ``tokens``: (tokens, width)."""
        with torch.inference_mode():
            found: Tensor = self.model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
        return found

    def after(self, tokens: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of what follows each of ``tokens``, before which there are the states ``hidden``, and what the layer's
        last norm gives."""
        count = len(tokens)
        with torch.inference_mode():
            embedded = self.model.model.embed_tokens(torch.tensor(tokens))
            pair = torch.cat((self.norm("enorm", embedded), self.norm("hnorm", hidden)), dim=-1)
            x = (pair @ self.own["eh_proj.weight"].T).unsqueeze(0)
            places = torch.arange(count).unsqueeze(0)
            found = self.block(
                x,
                attention_mask=torch.full((1, 1, count, count), float("-inf")).triu(1),
                position_ids=places,
                position_embeddings=self.model.model.rotary_emb(x, places),
            )
            last = self.norm("shared_head.norm", found[0] if isinstance(found, tuple) else found)[-count:]
            last = last.reshape(count, -1)
            return self.model.lm_head(last), last

    def guesses(self, tokens: list[int], count: int) -> list[int]:
        """The likeliest token after ``tokens``, and so on, each with the layer's own state before it."""
        following, hidden, found = tokens[1:], self.hidden(tokens)[:-1], list[int]()
        for _ in range(count):
            logits, last = self.after(following, hidden)
            found.append(int(logits[-1].argmax()))
            following = [*following, found[-1]]
            hidden = torch.cat((hidden, last[-1:]))
        return found
