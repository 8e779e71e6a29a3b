"""Choice of the engine for a model, by the form of its files, the device, and what is installed. `choose` is pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ferrule.engine.abilities import BUILT_IN
from ferrule.engine.device_names import AUTO, parse_device, parse_devices
from ferrule.engine.source import local
from ferrule.engine.spec import read_spec
from ferrule.errors import ModelError
from ferrule.model.gguf import gguf_file
from ferrule.model.headers import read_json

Form = Literal["gguf", "mlx", "safetensors"]
OWN: Final = BUILT_IN.engine


class Choice(NamedTuple):
    """``why``: for people, a clause that may follow the engine's name and a colon."""

    engine: str
    why: str


@dataclass(frozen=True)
class ModelFacts:
    """What the choice depends on of a model. ``form``: of its files; None: they are not here yet. ``refusal``: why the
    built-in engine does not run it, None where it does or that is not known."""

    form: Form | None = None
    refusal: str | None = None


def choose(model: ModelFacts, device: str, installed: Collection[str], own: Collection[str] = ()) -> Choice:
    """The engine for ``model`` on ``device`` (as of ``--device``), among those ``installed`` beside the built-in one.
    ``own``: flags that were given and that only that one has."""
    if own:
        return Choice(OWN, f"{', '.join(own)} is for it alone")
    kinds = {AUTO if each == AUTO else parse_device(each)[0] for each in parse_devices(device)}
    if model.form == "gguf" and model.refusal is not None:
        if "llama.cpp" in installed:
            reason = model.refusal.partition(";")[0]
            return Choice("llama.cpp", f"the built-in engine does not run this GGUF file ({reason})")
        return Choice(OWN, "llama.cpp, which may run this GGUF file, is not installed")
    if "mps" in kinds and model.form in ("mlx", "safetensors") and "mlx" in installed:
        return Choice("mlx", "it is installed, and the device is Metal")
    return Choice(OWN, "it runs this model")


def facts_of(model: str, *, deep: bool) -> ModelFacts:
    """Of a directory, a GGUF file or ``demo``; of a hub id nothing is known. ``deep``: also whether the built-in engine
    runs it, for which its headers are read. Raises `ModelError` where there is no such model."""
    place = local(model)
    if place is None:
        return ModelFacts()
    if gguf_file(place) is None:
        return ModelFacts("mlx" if _is_mlx(place) else "safetensors")
    return ModelFacts("gguf", _refusal(place) if deep else None)


def _is_mlx(directory: Path) -> bool:
    """Whether its weights are quantised as MLX does: by a table without a method of others."""
    file = directory / "config.json"
    told = read_json(file) if file.exists() else {}
    quantized = told.get("quantization") if isinstance(told, dict) else None
    return isinstance(quantized, dict) and "quant_method" not in quantized


def _refusal(file: Path) -> str | None:
    try:
        read_spec(file)
    except ModelError as error:
        return str(error)
    return None
