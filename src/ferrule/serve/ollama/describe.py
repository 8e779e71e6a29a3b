"""Descriptions of models, as `show`, `tags` and `ps` give them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any, Final

from ferrule.engine import Engine, SamplingParams
from ferrule.engine.device_names import CPU
from ferrule.model import ModelSpec
from ferrule.serve.answer.capabilities import capabilities
from ferrule.serve.answer.service import Service
from ferrule.serve.ollama.names import tagged
from ferrule.serve.ollama.objects import Details, Listed, Shown, moment

VERSION: Final = "0.18.0"
"""The version of Ollama whose API this is. Clients ask for one before they use what came with it (tool calls, 0.3;
thinking, 0.9; the editor's own list of models, 0.6.4; ``/v1/responses``, 0.13.3; capabilities of models, 0.17.6), and
later ones would promise what is not here."""

FOREVER: Final = 100 * 365 * 86400.0
"""Seconds after which a model that stays in memory is said to leave it."""

GGUF: Final = "GGUF "
_CAPABILITIES: Final = {
    "completion": "completion",
    "tools": "tools",
    "reasoning": "thinking",
    "embeddings": "embedding",
}
"""Those that Ollama has a word for."""
_LABELS: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def details(spec: ModelSpec) -> Details:
    stored = spec.stored.removeprefix(GGUF)
    kind = "safetensors" if stored == spec.stored else "gguf"
    family = spec.model_type
    return Details(kind, family, [family], _count(spec.parameters), _LABELS.get(stored, stored))


def _count(parameters: int) -> str:
    """A number of parameters as Ollama writes it: 7.6B, 494.03M, 8.19K."""
    for factor, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= factor:
            return f"{parameters / factor:.{1 if factor >= 10**9 else 2}f}{unit}"
    return str(parameters)


def _digest(engine: Engine) -> str:
    """Changes when another model has the name. Blobs, whose digests Ollama's are, are not here."""
    spec = engine.spec
    told = [engine.name, spec.architecture, spec.stored, spec.bytes, spec.parameters, spec.layers, spec.vocab_size]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _listed(engine: Engine, size: int, **fields: Any) -> Listed:
    name = tagged(engine.name)
    return Listed(name=name, model=name, size=size, digest=_digest(engine), details=details(engine.spec), **fields)


def can_be_had(engine: Engine) -> Listed:
    """The model as `tags` lists it."""
    return _listed(engine, engine.spec.bytes, modified_at=moment(engine.created))


def in_memory(service: Service) -> Listed:
    """The model as `ps` lists it: ``size`` of its weights on all ranks, ``size_vram`` of those on accelerators."""
    engine = service.engine
    left = service.tenure.left() if service.tenure is not None else None
    held = [(rank.weight_bytes, not rank.device.startswith(CPU)) for rank in engine.ranks]
    return _listed(
        engine,
        sum(size for size, _ in held),
        size_vram=sum(size for size, accelerated in held if accelerated),
        expires_at=moment(time.time() + (FOREVER if left is None else left)),
        context_length=engine.max_context,
    )


def shown(service: Service) -> Shown:
    """The model as `show` describes it. ``template`` is of Jinja, as the model has it."""
    engine = service.engine
    template = engine.tokenizer.chat_template or ""
    parameters = list(_parameters(engine.default_sampling))
    lines = [f"FROM {engine.name}", *(f"PARAMETER {name} {value}" for name, value in parameters)]
    if template:
        lines.insert(1, f'TEMPLATE """{template}"""')
    return Shown(
        "\n".join(lines),
        "\n".join(f"{name:<30} {value}" for name, value in parameters),
        template,
        details(engine.spec),
        _model_info(engine),
        [_CAPABILITIES[each] for each in capabilities(engine, service.dialect, _CAPABILITIES)],
        moment(engine.created),
    )


def _parameters(sampling: SamplingParams) -> Iterator[tuple[str, str]]:
    """The model's own defaults, where they are not off."""
    off = SamplingParams()
    for name, field in (
        ("temperature", "temperature"),
        ("top_k", "top_k"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repeat_penalty", "repetition_penalty"),
    ):
        value = getattr(sampling, field)
        if value != getattr(off, field):
            yield name, f"{value:g}"


def _model_info(engine: Engine) -> dict[str, Any]:
    """In the keys of GGUF. ``context_length`` is what is served here, which may be less than the model can."""
    spec = engine.spec
    told = {
        "context_length": engine.max_context,
        "embedding_length": spec.hidden_size,
        "block_count": spec.layers,
        "attention.head_count": spec.query_heads,
        "attention.head_count_kv": spec.key_value_heads,
        "vocab_size": spec.vocab_size,
    }
    if spec.experts:
        told["expert_count"] = spec.experts
    return {
        "general.architecture": spec.model_type,
        "general.basename": engine.name,
        "general.parameter_count": spec.parameters,
        **{f"{spec.model_type}.{key}": value for key, value in told.items()},
    }
