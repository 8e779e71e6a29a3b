"""LoRA adapters (Hu et al. 2021) as PEFT saves them: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from pathlib import Path
from typing import Any

from ferrule.engine.options import Adapter
from ferrule.engine.source import resolve
from ferrule.errors import ModelError
from ferrule.model import ModelSpec, Stored, with_adapters
from ferrule.model.headers import read_headers, read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_UNSUPPORTED: Mapping[str, str] = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "LoRA with biases",
    "modules_to_save": "modules that were trained whole (modules_to_save)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "target_parameters": "adapted parameters (target_parameters), as those of experts",
    "layer_replication": "replicated layers (layer_replication)",
    "alora_invocation_tokens": "activated LoRA, which begins within the prompt",
    "arrow_config": "a mixture of adapters (Arrow)",
    "monteclora_config": "MonteCLoRA",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
}
"""Settings of LoRA whose adapters would mean something else if they were left out."""
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the weights of the base, too."""
_DTYPES = frozenset({"F32", "F16", "BF16"})


@dataclass(frozen=True)
class Pair:
    """What an adapter adds to a linear layer: ``scale`` * B A x. ``module``: the layer's name. ``a`` (rank, inputs) and
    ``b`` (outputs, rank): tensors of its file."""

    module: str
    a: Stored
    b: Stored
    scale: float


def find(adapter: Adapter) -> Adapter:
    """``adapter`` with the directory of its files, downloaded where it is a hub id. Raises `ModelError`."""
    try:
        directory = resolve(adapter.path).absolute()
    except ModelError as error:
        raise ModelError(f"adapter {adapter.name!r}: {error}") from None
    return replace(adapter, path=str(directory), identity=identity_of(directory))


def identity_of(directory: Path) -> str:
    """Digest of an adapter's files. Raises `ModelError` where one is not there."""
    hashed = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            with (directory / name).open("rb") as file:
                hashed.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ModelError(
                f"{directory / name} cannot be read ({error.strerror}); an adapter is a directory with {CONFIG} and "
                f"{WEIGHTS}, as PEFT's save_pretrained makes it"
            ) from None
    return hashed.hexdigest()


def read_pairs(adapter: Adapter) -> tuple[Pair, ...]:
    """What ``adapter``, whose files are here, adds to which layers. Raises `ModelError` for what is not LoRA on linear
    layers alone, and for damaged files."""
    directory = Path(adapter.path)
    config = read_json(directory / CONFIG)
    _check_supported(adapter.name, config, str(directory / CONFIG))
    sides: dict[str, dict[str, Stored]] = {}
    for tensor in read_headers(directory / WEIGHTS):
        match = _TENSOR.fullmatch(tensor.name)
        if match is None:
            raise ModelError(f"adapter {adapter.name!r}: {_strange(tensor.name)}")
        if len(tensor.shape) != 2 or tensor.dtype not in _DTYPES:
            raise ModelError(
                f"adapter {adapter.name!r}: {tensor.name} is a {tensor.dtype} tensor of shape {tensor.shape}; matrices "
                "in float32, float16 or bfloat16 are run here"
            )
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    if not sides:
        raise ModelError(f"adapter {adapter.name!r}: {directory / WEIGHTS} holds no tensors")
    return tuple(_pair(adapter.name, module, found, config) for module, found in sides.items())


def _check_supported(name: str, config: Mapping[str, Any], file: str) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"adapter {name!r} is of the kind {kind!r} ({file}); only LoRA is run here")
    for field, what in _UNSUPPORTED.items():
        if config.get(field):
            raise ModelError(
                f"adapter {name!r} has {what} ({field} in {file}), which is not run here; merge it instead"
            )
    if config.get("bias", "none") != "none":
        raise ModelError(f"adapter {name!r} changes biases (bias is {config['bias']!r} in {file}); train it with none")
    begun = str(config.get("init_lora_weights", True)).lower()
    if begun.startswith(_BASE_CHANGING):
        raise ModelError(
            f"adapter {name!r} belongs to a changed base (init_lora_weights is {begun!r} in {file}); save it with "
            "path_initial_model_for_weight_conversion, which makes an ordinary adapter of it"
        )


def _strange(tensor: str) -> str:
    """Why a tensor of this name is not run."""
    if "lora_embedding" in tensor:
        return f"{tensor} adapts an embedding, which is not run here; leave embeddings out of target_modules"
    if "lora_magnitude_vector" in tensor:
        return f"{tensor} is of DoRA, which is not run here; merge it instead"
    if ".lora_" not in tensor:
        return (
            f"{tensor} is a weight of the base itself, as PEFT saves them of embeddings and output layers that were "
            "adapted or trained, which is not run here"
        )
    return f"{tensor} is no matrix of LoRA on a linear layer as PEFT names them (base_model.model.….lora_A.weight)"


def _pair(name: str, module: str, sides: Mapping[str, Stored], config: Mapping[str, Any]) -> Pair:
    if len(sides) < 2:
        (there,) = sides.values()
        raise ModelError(f"adapter {name!r}: {there.name} is there without its other half; download it again")
    a, b = sides["A"], sides["B"]
    rank = _setting(config, "rank_pattern", module, config.get("r"))
    alpha = _setting(config, "alpha_pattern", module, config.get("lora_alpha"))
    if not isinstance(rank, int) or rank < 1 or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise ModelError(f"adapter {name!r}: {CONFIG} says r {rank!r} and lora_alpha {alpha!r} for {module}")
    if (a.shape[0], b.shape[1]) != (rank, rank):
        raise ModelError(
            f"adapter {name!r}: {a.name} has shape {a.shape} and {b.name} {b.shape}, but {CONFIG} says rank {rank}"
        )
    return Pair(module, a, b, alpha / (sqrt(rank) if config.get("use_rslora") else rank))


def _setting(config: Mapping[str, Any], pattern: str, module: str, default: Any) -> Any:
    """That of the first expression in ``pattern`` that ``module`` ends with, as PEFT chooses it."""
    given = config.get(pattern) or {}
    try:
        return next((each for key, each in given.items() if re.match(rf"(.*\.)?({key})$", module)), default)
    except re.error as error:
        raise ModelError(f"{pattern} in {CONFIG} has an expression that cannot be read: {error}") from None


def counted(spec: ModelSpec, adapters: Sequence[Adapter]) -> ModelSpec:
    """``spec`` with the memory of ``adapters``, for the planner. Raises what `read_pairs` raises."""
    tensors = (tensor for each in adapters for pair in read_pairs(each) for tensor in (pair.a, pair.b))
    return with_adapters(spec, ((tensor.name, prod(tensor.shape)) for tensor in tensors))
