"""An encoder on one rank: built without memory, and filled from the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModel

from ferrule.engine.devices import Device
from ferrule.engine.rank.model import restore_buffers
from ferrule.engine.rank.packed import PACKS
from ferrule.engine.source import read_config, saved_dtype
from ferrule.engine.weights.checkpoint import Checkpoint, some
from ferrule.engine.weights.loading import BytesRead, load, recipes
from ferrule.engine.weights.pieces import Recipe
from ferrule.errors import ModelError
from ferrule.model.families.encoders import is_unused
from ferrule.model.names import is_no_weight


@dataclass
class Encoder:
    """``padding``: the token that shorter texts of a batch are filled up with."""

    model: Any
    dtype: torch.dtype
    padding: int
    weight_bytes: int

    def hidden(self, tokens: Tensor, there: Tensor) -> Tensor:
        """Hidden states (texts, longest, width) after the last norm. ``tokens`` (texts, longest); ``there``: the same
        with ones where they are no padding."""
        out = self.model(input_ids=tokens, attention_mask=there)
        return cast(Tensor, out.last_hidden_state).float()


def build(directory: Path, dtype: str, device: Device, on_bytes: BytesRead, weights: str | None = None) -> Encoder:
    """Build and load an encoder. ``dtype`` and ``weights``: as of `EngineOptions`. Raises `ModelError` where it cannot
    be run, or the files do not fit it."""
    config = read_config(directory)
    torch_dtype: torch.dtype = getattr(torch, saved_dtype(config) if dtype == "auto" else dtype)
    config.use_cache = False
    try:
        with torch.device("meta"):
            model: Any = AutoModel.from_config(config, dtype=torch_dtype, trust_remote_code=False)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{type(config).__name__} cannot be built to run here: {error}") from None
    model.eval()
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # BERT's, which stands on the first token; vectors are pooled here
    with Checkpoint(directory, weights) as checkpoint:
        made_of = recipes(model, list(checkpoint.tensors))
        _check_all_used(type(model).__name__, made_of, checkpoint)
        size = load(model, made_of, {}, {}, checkpoint, on_bytes, device.torch_device, PACKS)
    restore_buffers(model, device.torch_device, model)
    return Encoder(model, torch_dtype, int(getattr(config, "pad_token_id", None) or 0), size)


def _check_all_used(name: str, made_of: Mapping[str, Recipe], checkpoint: Checkpoint) -> None:
    """Raise `ModelError` where the checkpoint has layers that the class ``name`` has not: some encoders call
    themselves BERT, and bring code of their own."""
    used = {key for recipe in made_of.values() for keys in recipe.sources.values() for key in keys}
    left = [key for key in checkpoint.tensors if not (key in used or is_unused(key) or is_no_weight(key))]
    if left:
        raise ModelError(
            f"{checkpoint.directory} holds {some(left)}, of which transformers' {name} makes nothing, so its vectors "
            "would be wrong; models with code of their own are not run here"
        )
