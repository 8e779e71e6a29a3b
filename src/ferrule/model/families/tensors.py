"""The tensors that a model of a given shape must have, by arithmetic. Shapes are (outputs, inputs)."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.model.families.compressed_tensors import compressed_tensors, hyper_head, hyper_tensors
from ferrule.model.families.mixer_tensors import mixer_tensors
from ferrule.model.families.shape import LayerShape, Shape
from ferrule.model.layer import AttentionSpec
from ferrule.model.storage import Role, Tensor


def tensors_of(shape: Shape) -> Iterator[Tensor]:
    """Every tensor of the model that ``shape`` describes, named as `ferrule.model.names` understands it."""
    hidden, vocab = shape.hidden_size, shape.vocab_size
    yield Tensor("model.embed_tokens.weight", (vocab, hidden), "embedding")
    for index, layer in enumerate(shape.layers):
        yield from _layer(shape, layer, f"model.layers.{index}")
    yield from _norm("model.norm", hidden, shape.family.norm_bias)
    if not shape.tied:
        yield Tensor("lm_head.weight", (vocab, hidden), "head")
        if shape.has(shape.family.head_bias):
            yield Tensor("lm_head.bias", (vocab,), "plain")
    if shape.model_type == "gemma3n_text":
        yield from _gemma3n(shape)
    if shape.family.attention == "compressed":
        yield from hyper_head(shape)


def _linear(name: str, outputs: int, inputs: int, bias: bool = False, role: Role = "linear") -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (outputs, inputs), role)
    if bias:
        yield Tensor(f"{name}.bias", (outputs,), "plain")


def _norm(name: str, width: int, bias: bool = False) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (width,), "plain")
    if bias:
        yield Tensor(f"{name}.bias", (width,), "plain")


def _layer(shape: Shape, layer: LayerShape, name: str) -> Iterator[Tensor]:
    family, hidden = shape.family, shape.hidden_size
    for number in range(family.norms):
        yield from _norm(f"{name}.layer_norm_{number}", hidden, family.norm_bias)
    if layer.mixer is not None:
        yield from mixer_tensors(shape, layer.mixer, name)
    if layer.attention is not None and layer.attention.kind == "compressed":
        yield from compressed_tensors(shape, layer.attention, name)
        yield from hyper_tensors(shape, name)
    elif layer.attention is not None:
        attention = _latent_attention if layer.attention.kind == "latent" else _attention
        yield from attention(shape, layer.attention, f"{name}.self_attn")
    if layer.experts is not None:
        yield from _experts(shape, layer, name)
    elif layer.width:
        own = "shared_mlp" if shape.model_type == "granitemoehybrid" else "mlp"
        yield from _mlp(shape, f"{name}.{own}", layer.width)
    if shape.model_type == "gemma3n_text":
        yield from _gemma3n_layer(shape, name)


def _attention(shape: Shape, attention: AttentionSpec, name: str) -> Iterator[Tensor]:
    family, hidden = shape.family, shape.hidden_size
    query = attention.query_heads * attention.key_width
    key, value = attention.key_value_heads * attention.key_width, attention.key_value_heads * attention.value_width
    bias = shape.has(family.query_bias)
    if family.attention == "fused":
        yield from _linear(f"{name}.qkv_proj", query + key + value, hidden, bias)
    else:
        yield from _linear(f"{name}.q_proj", query * (2 if family.query_gate else 1), hidden, bias)
        if not attention.shared_cache:
            yield from _linear(f"{name}.k_proj", key, hidden, bias)
            yield from _linear(f"{name}.v_proj", value, hidden, bias)
    output = attention.query_heads * attention.value_width
    yield from _linear(f"{name}.o_proj", hidden, output, shape.has(family.output_bias))
    norm = family.query_norm
    if norm is not None and shape.has(family.query_norm_if):
        yield from _norm(f"{name}.q_norm", query if norm == "whole" else attention.key_width)
        if not attention.shared_cache:
            yield from _norm(f"{name}.k_norm", key if norm == "whole" else attention.key_width)
    if family.sinks == "all" or (family.sinks == "sliding" and attention.window is not None):
        yield Tensor(f"{name}.sinks", (attention.query_heads,), "plain")
    if family.attention_gate:
        yield from _linear(f"{name}.gate_proj", query, hidden)


def _latent_attention(shape: Shape, attention: AttentionSpec, name: str) -> Iterator[Tensor]:
    """DeepSeek-V2 (2024), section 2.1: queries and keys/values come out of latents."""
    hidden = shape.hidden_size
    query = attention.query_heads * attention.key_width
    bias = shape.has(shape.family.query_bias)
    rank = shape.fields.maybe("q_lora_rank")
    if rank is None:
        yield from _linear(f"{name}.q_proj", query, hidden)
    else:
        yield from _linear(f"{name}.q_a_proj", rank, hidden, bias)
        yield from _norm(f"{name}.q_a_layernorm", rank)
        yield from _linear(f"{name}.q_b_proj", query, rank)
    yield from _linear(f"{name}.kv_a_proj_with_mqa", attention.latent_width, hidden, bias)
    yield from _norm(f"{name}.kv_a_layernorm", attention.latent_rank)
    plain = attention.key_width - (attention.latent_width - attention.latent_rank)
    expanded = attention.query_heads * (plain + attention.value_width)
    yield from _linear(f"{name}.kv_b_proj", expanded, attention.latent_rank)
    output = attention.query_heads * attention.value_width
    yield from _linear(f"{name}.o_proj", hidden, output, shape.has(shape.family.output_bias))
    if attention.index_width:
        yield from _linear(f"{name}.indexer.wq_b", attention.index_heads * attention.index_width, rank or hidden)
        yield from _linear(f"{name}.indexer.wk", attention.index_width, hidden)
        yield from _norm(f"{name}.indexer.k_norm", attention.index_width, True)
        yield from _linear(f"{name}.indexer.weights_proj", attention.index_heads, hidden)


def _mlp(shape: Shape, name: str, width: int) -> Iterator[Tensor]:
    hidden, bias = shape.hidden_size, shape.has(shape.family.mlp_bias)
    if shape.family.mlp == "packed":
        yield from _linear(f"{name}.gate_up_proj", 2 * width, hidden, bias)
    else:
        if shape.family.mlp == "gated":
            yield from _linear(f"{name}.gate_proj", width, hidden, bias)
        yield from _linear(f"{name}.up_proj", width, hidden, bias)
    yield from _linear(f"{name}.down_proj", hidden, width, bias)


def _experts(shape: Shape, layer: LayerShape, within: str) -> Iterator[Tensor]:
    """``within``: the layer's name."""
    assert layer.experts is not None
    hidden, family, count, width = shape.hidden_size, shape.family, layer.experts.count, layer.experts.width
    name = f"{within}.mlp"
    yield Tensor(f"{name}.gate.weight", (count, hidden), "router")
    if layer.hashed:
        yield Tensor(f"{name}.gate.tid2eid", (shape.vocab_size, layer.experts.per_token), "numbers")
    elif family.router_bias or family.expert_bias:
        yield Tensor(f"{name}.gate.bias", (count,), "plain")
    inner = shape.expert_inputs
    if inner != hidden:
        yield from _linear(f"{name}.fc1_latent_proj", inner, hidden, shape.has(family.mlp_bias))
        yield from _linear(f"{name}.fc2_latent_proj", hidden, inner, shape.has(family.mlp_bias))
    stacked = family.experts_inputs_first or family.mlp == "packed"
    role: Role = "stack" if stacked else "expert"
    for each in ("up_proj",) if family.mlp == "plain" else ("gate_proj", "up_proj"):
        yield Tensor(f"{name}.experts.{each}.weight", (width, inner), role, count)
    yield Tensor(f"{name}.experts.down_proj.weight", (inner, width), role, count)
    if family.expert_bias:
        yield Tensor(f"{name}.experts.gate_up_proj_bias", (2 * width,), "plain", count)
        yield Tensor(f"{name}.experts.down_proj_bias", (hidden,), "plain", count)
    if layer.shared_width:
        yield from _mlp(shape, f"{name}.shared_experts", layer.shared_width)
        if family.shared_gate:
            yield Tensor(f"{name}.shared_expert_gate.weight", (1, hidden), "router")


def _gemma3n(shape: Shape) -> Iterator[Tensor]:
    """Tensors of Gemma 3n beside its layers: embeddings per layer, and several predictions of the hidden state."""
    hidden, inputs = shape.hidden_size, shape.fields.integer("altup_num_inputs", default=4)
    width = len(shape.layers) * shape.fields.integer("hidden_size_per_layer_input", default=256)
    vocab = shape.fields.integer("vocab_size_per_layer_input", default=262144)
    yield Tensor("model.embed_tokens_per_layer.weight", (vocab, width), "embedding")
    yield from _linear("model.per_layer_model_projection", width, hidden)
    yield from _norm("model.per_layer_projection_norm", width // len(shape.layers))
    for number in range(inputs - 1):
        yield from _linear(f"model.altup_projections.{number}", hidden, hidden)
        yield from _linear(f"model.altup_unembed_projections.{number}", hidden, hidden)


def _gemma3n_layer(shape: Shape, name: str) -> Iterator[Tensor]:
    hidden, inputs = shape.hidden_size, shape.fields.integer("altup_num_inputs", default=4)
    rank = shape.fields.integer("laurel_rank", default=64)
    width = shape.fields.integer("hidden_size_per_layer_input", default=256)
    yield Tensor(f"{name}.altup.correct_output_scale", (hidden,), "plain")
    yield from _linear(f"{name}.altup.correction_coefs", inputs, inputs)
    yield from _linear(f"{name}.altup.prediction_coefs", inputs * inputs, inputs)
    yield from _linear(f"{name}.altup.modality_router", inputs, hidden)
    yield from _norm(f"{name}.altup.router_norm", hidden)
    yield from _linear(f"{name}.laurel.linear_left", rank, hidden)
    yield from _linear(f"{name}.laurel.linear_right", hidden, rank)
    yield from _norm(f"{name}.laurel.post_laurel_norm", hidden)
    yield from _linear(f"{name}.per_layer_input_gate", width, hidden)
    yield from _linear(f"{name}.per_layer_projection", hidden, width)
    yield from _norm(f"{name}.post_per_layer_input_norm", hidden)
