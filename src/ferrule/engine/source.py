"""Find a model's files and read what they say about it, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from ferrule.engine.architectures import (
    cuts_of,
    layers_refusal,
    longest_context,
    pipeline_refusal,
    tensor_refusal,
)
from ferrule.engine.download import download
from ferrule.engine.import_structure import import_models
from ferrule.engine.weights.checkpoint import Checkpoint, quantization_of
from ferrule.engine.weights.formats import Weight, known_methods
from ferrule.engine.weights.formats.grouped import GroupedFormat
from ferrule.engine.weights.gguf.names import family_of
from ferrule.errors import ModelError, first_line
from ferrule.model import Cuts, ModelSpec, demo_path, spec_of_tensors
from ferrule.model.count import Counts, lacking
from ferrule.model.families.family import SAME_CLASS, SEEING
from ferrule.model.families.shape import read_shape
from ferrule.model.gguf import SUFFIX, gguf_config, gguf_file, gguf_text, model_name, read_gguf_model
from ferrule.model.headers import read_json
from ferrule.model.holding import Tensors
from ferrule.model.storage import named_format

DEMO = "demo"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HEAD = "lm_head.weight"
"""Name of an output layer among a model's tensors."""
FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
COMPUTED = ("float32", "bfloat16", "float16")


def resolve(model: str, on_download: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Path of ``model``: a local directory, a GGUF file, ``demo``, or a hub id (downloaded, or found in the hub's
    cache). ``on_download``: as in `download`.

    Raises `ModelError` where there is none.
    """
    return local(model) or download(model, on_download)


def local(model: str) -> Path | None:
    """The directory (or GGUF file) of ``model`` if it is here; None for a hub id. Raises `ModelError` for what cannot
    be either."""
    if model == DEMO:
        return demo_path()
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.suffix == SUFFIX:
        if not path.is_file():
            raise ModelError(f"{model}: no such file")
        return path
    if path.exists():
        raise ModelError(
            f"{model} is a file; give the directory that holds config.json and the safetensors, or a GGUF file"
        )
    if not HUB_ID.fullmatch(model):
        raise ModelError(f"{model}: no such directory (nor is it a hub id of the form owner/name)")
    return None


def called(model: str, directory: Path) -> str:
    """What ``model``, whose files are in ``directory``, is called where nobody gives it a name. A model of the hub is
    called by its id: its directory in the hub's cache has the name of a commit."""
    return model if local(model) is None else model_name(directory)


def configuration_file(directory: Path) -> Path:
    """The model's ``config.json``, or its GGUF file. Raises `ModelError` where it has neither."""
    file = gguf_file(directory) or directory / "config.json"
    if not file.exists():
        raise ModelError(f"{directory} holds no config.json and no GGUF file; is it a model directory?")
    return file


def read_config(directory: Path) -> Any:
    """The model's configuration as transformers has it. Raises `ModelError` where it cannot be read or is not run here.

    The first call imports transformers and torch, which takes seconds and 200 MiB (see `ferrule.engine.spec`).
    """
    file = configuration_file(directory)
    fields = {} if file.suffix == SUFFIX else read_json(file)
    load = partial(_load_gguf_config, file) if file.suffix == SUFFIX else partial(_load_config, directory, fields)
    import_models()
    return _checked(load, fields, str(file), str(directory))


def read_seeing(directory: Path) -> Any | None:
    """The whole configuration of a model that takes images, of which `read_config` gives the language model's; None for
    one that takes text only."""
    outer = _outer(directory)
    return None if outer is None else _load_config(directory, outer)


def _outer(directory: Path) -> dict[str, Any] | None:
    """The ``config.json`` of a model whose language model is a part of it."""
    file = configuration_file(directory)
    fields = {} if file.suffix == SUFFIX else read_json(file)
    return fields if "text_config" in fields else None


def config_of(fields: dict[str, Any], name: str) -> Any:
    """The same of the parsed ``config.json`` of a model that is not here; of one that takes images the whole one."""
    config = _checked(lambda: _made_config(fields), fields, f"{name}: config.json", name)
    return _made_config(fields) if "text_config" in fields else config


def _checked(load: Callable[[], Any], fields: dict[str, Any], file: str, name: str) -> Any:
    """``name``: of the model, in errors."""
    try:
        config = load()
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - numbers may be anything, and so is what transformers' checks raise
        unknown = _unknown_family(fields) if fields else None  # a GGUF file's was looked up
        if unknown is not None:
            raise ModelError(f"{file}: {unknown}") from None
        why = first_line(error.__cause__ or error)
        raise ModelError(f"{file} cannot be read as a model configuration: {why}") from None
    method = quantization_of(fields).get("quant_method", "an unnamed method")
    if quantization_of(fields) and method not in known_methods():
        known = ", ".join(sorted(known_methods()))
        raise ModelError(
            f"{name} is quantized ({method}), which this engine does not run; use weights of {known}, bfloat16 or "
            "float16"
        )
    config = _language_model(config, name)
    refusal = layers_refusal(config)
    if refusal is not None:
        raise ModelError(f"{name} ({config.model_type}) {refusal}")
    try:
        heads, _ = getattr(config, "num_attention_heads", None), getattr(config, "num_key_value_heads", None)
    except RuntimeError:  # transformers: a number that differs between layers was asked for as if it did not
        raise ModelError(
            f"the layers of {name} ({config.model_type}) differ in their numbers of heads, which is not run here"
        ) from None
    if not heads:
        raise ModelError(f"{name} ({config.model_type}) is not a transformer decoder with attention heads")
    return config


def _language_model(whole: Any, name: str) -> Any:
    """The configuration of the language model of ``whole``, with what only that says."""
    config = whole.get_text_config()
    if config is whole:
        return config
    if whole.model_type not in SEEING:
        raise ModelError(
            f"{name} is a multimodal {whole.model_type} model; of those only {', '.join(sorted(SEEING))} are run"
        )
    for told in ("architectures", "dtype", "tie_word_embeddings"):
        setattr(config, told, getattr(whole, told, None))
    return config


def _unknown_family(fields: Mapping[str, Any]) -> str | None:
    """Reason why the family is unknown of a ``config.json`` with these ``fields``, and the cure; None where the
    installed transformers does."""
    import transformers
    from transformers import CONFIG_MAPPING

    model_type = fields.get("model_type")
    if model_type is None:
        return "no model_type says which family the model is of; take the config.json that was published with it"
    if str(model_type) in {*CONFIG_MAPPING.keys(), *SAME_CLASS}:
        return None
    return (
        f"model_type {model_type!r} is not a family known here, nor to the installed transformers "
        f"{transformers.__version__}, and is taken for no other; a later transformers may know it (pip install -U "
        "transformers), or another engine"
    )


def _load_config(directory: Path, fields: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    if str(fields.get("model_type")) not in SAME_CLASS:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    return _made_config(fields)


def _made_config(fields: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    model_type = str(fields.get("model_type"))
    own = {name: value for name, value in fields.items() if name not in ("model_type", "auto_map")}
    return AutoConfig.for_model(SAME_CLASS.get(model_type, model_type), **own)


def _load_gguf_config(file: Path) -> Any:
    from transformers import AutoConfig

    fields = gguf_config(read_gguf_model(file))
    model_type = str(fields.pop("model_type"))
    family_of(model_type, str(file))
    return AutoConfig.for_model(model_type, **fields)


def saved_dtype(config: Any) -> str:
    """The dtype that the weights were saved in, where the engine computes in it; float32 otherwise."""
    name = str(config.dtype).removeprefix("torch.")
    return name if name in COMPUTED else "float32"


def _counts(key: str, weight: Weight, checkpoint: Checkpoint) -> Counts:
    """``weight`` as it is stored, and as it is held."""
    form = weight.format
    held = Tensors(weight.shape, form.packing(weight, checkpoint) if isinstance(form, GroupedFormat) else None)
    return Counts(key, prod(weight.shape), weight.bytes, held)


def describe(directory: Path, config: Any, weights: str | None = None, dtype: str = "auto") -> ModelSpec:
    """Counts and sizes for the planner, by transformers' configuration. Checks all files on the way; raises
    `ModelError` where one is damaged. ``weights``: as in `Checkpoint`. ``dtype``: what is computed in, ``auto`` for
    what they were saved in."""
    known = {field: getattr(config, field) for field in FIELDS}  # some architectures have other names for these
    fields, outer = config.to_dict() | known, _outer(directory)
    if outer is not None:
        fields = {**{name: fields[name] for name in ("architectures", "dtype")}, **outer, "text_config": fields}
    spec = count_files(directory, fields, weights, dtype, cuts_of(config))
    name = (config.architectures or [type(config).__name__])[0]
    return replace(
        spec,
        architecture=name,
        max_context=longest_context(config),
        tensor_refusal=tensor_refusal(config, name),
        pipeline_refusal=pipeline_refusal(config, name),
    )


def count_files(
    directory: Path,
    fields: Mapping[str, Any],
    weights: str | None = None,
    dtype: str = "auto",
    cuts: Cuts | None = None,
    *,
    mtp: bool = False,
) -> ModelSpec:
    """Counts and sizes of the model's files, by the ``fields`` of its configuration. ``dtype``: as in `describe`;
    ``cuts``: as in `spec_of_tensors`; ``mtp``: as in `Checkpoint`. Checks all files on the way; raises `ModelError`
    where one is damaged, `ConfigError` where a field cannot be."""
    with Checkpoint(directory, weights, mtp=mtp) as checkpoint:
        tensors = [_counts(key, each, checkpoint) for key, each in checkpoint.tensors.items()]
    # What tensors take is known already.
    told = {key: value for key, value in fields.items() if key not in ("quantization_config", "quantization")}
    if dtype != "auto":
        told["dtype"] = dtype
    elif not (told.get("dtype") or told.get("torch_dtype")):
        told["dtype"] = COMPUTED[0]  # as `saved_dtype` has it
    file = str(configuration_file(directory))
    missing = lacking(read_shape(told, file, cuts), tensors)
    if missing is not None:
        raise ModelError(f"{directory} has no weights for {missing}; download the model again")
    spec = spec_of_tensors(model_name(directory), told, file, tensors, cuts)
    if weights is not None:
        spec = replace(spec, stored=named_format(weights).text)
    gguf = gguf_file(directory)
    if gguf is not None:
        spec = replace(spec, stored=gguf_text(read_gguf_model(gguf)))
    return spec
