"""Models read from directories: exact where there are headers, true where there are not, refused where they lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_models import (
    CONFIG,
    data_bytes,
    header,
    tensors_of_config,
    write_config,
    write_index,
    write_safetensors,
)

from ferrule.errors import ConfigError, ModelError, PlanError
from ferrule.model import read_model
from ferrule.model.headers import parse_header
from ferrule.plan import ClusterSpec, DeviceSpec, Question
from ferrule.plan.explain import cautions

TENSORS = tensors_of_config()
MLP = 3 * 64 * 32


def write_model(directory: Path) -> Path:
    write_safetensors(write_config(directory) / "model.safetensors", TENSORS)
    return directory


def test_bytes_are_those_of_the_headers_layer_by_layer(tmp_path: Path) -> None:
    spec = read_model(str(write_model(tmp_path)))
    assert spec.counted == "headers"
    assert spec.bytes == data_bytes(TENSORS) == 2 * spec.parameters
    dense, sparse = spec.decoder[0], spec.decoder[1]
    assert dense.weights.dense.parameters == 3 * 64 * 128
    assert sparse.weights.routed.parameters == 4 * MLP
    assert sparse.active_parameters == sparse.parameters - 2 * MLP
    assert sparse.weights.attention.parameters == 2 * 64 * 64
    assert sparse.weights.key_value.parameters == 2 * 64 * 16
    assert sparse.weights.norm.parameters == 2 * 64 + 2 * 8
    assert sparse.weights.other.parameters == 4 * 64
    assert (spec.embedding.parameters, spec.head.parameters, spec.final.parameters) == (6400, 6400, 64)


def test_arithmetic_alone_gives_the_same(tmp_path: Path) -> None:
    whole, other = write_model(tmp_path), tmp_path / "other"
    other.mkdir()
    computed = read_model(str(write_config(other)))
    assert computed.counted == "config"
    assert computed.decoder == read_model(str(whole)).decoder
    assert read_model(str(other / "config.json")).decoder == computed.decoder


def test_an_index_without_its_files_confirms_arithmetic(tmp_path: Path) -> None:
    write_index(write_config(tmp_path), dict.fromkeys(TENSORS, "part-1.safetensors"), data_bytes(TENSORS))
    spec = read_model(str(tmp_path))
    assert (spec.counted, spec.bytes, spec.notes) == ("index", data_bytes(TENSORS), ())
    assert not spec.tied


def test_several_files_are_read_when_they_are_there(tmp_path: Path) -> None:
    names = sorted(TENSORS)
    parts = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    write_config(tmp_path)
    for file, held in parts.items():
        write_safetensors(tmp_path / file, {name: TENSORS[name] for name in held})
    write_index(tmp_path, {name: file for file, held in parts.items() for name in held}, 1)
    spec = read_model(str(tmp_path))
    assert (spec.counted, spec.bytes) == ("headers", data_bytes(TENSORS))


def test_an_index_that_says_more_scales_the_layers(tmp_path: Path) -> None:
    total = data_bytes(TENSORS) * 5 // 4
    write_index(write_config(tmp_path), dict.fromkeys(TENSORS, "part-1.safetensors"), total)
    spec = read_model(str(tmp_path))
    assert spec.bytes == pytest.approx(total, abs=len(TENSORS))
    assert spec.parameters == data_bytes(TENSORS) // 2
    assert "scaled to fit" in spec.notes[0]


def test_layers_beyond_the_last_are_no_part_of_decoding(tmp_path: Path) -> None:
    files = dict.fromkeys([*TENSORS, "model.layers.3.mlp.gate.weight"], "part-1.safetensors")
    write_index(write_config(tmp_path), files, data_bytes(TENSORS) + 5000)
    spec = read_model(str(tmp_path))
    assert spec.bytes == data_bytes(TENSORS)
    assert "5,000 bytes of the files are no part of decoding" in spec.notes[0]
    extra = {**TENSORS, "mtp.layers.0.proj.weight": ("BF16", (64, 64)), "model.layers.3.x.weight": ("BF16", (64, 64))}
    write_safetensors(tmp_path / "part-1.safetensors", extra)
    held = read_model(str(tmp_path))
    assert held.decoder == spec.decoder
    assert "16,384 bytes" in held.notes[0]


@pytest.mark.parametrize(
    ("quantization", "packed", "scales"),
    [
        ({"quantization": {"bits": 4, "group_size": 32}}, ("U32", (64, 8)), {"scales": (64, 2), "biases": (64, 2)}),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
            ("I32", (8, 64)),
            {"scales": (2, 64), "qzeros": (2, 8), "g_idx": (64,)},
        ),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}},
            ("I32", (64, 8)),
            {"scales": (2, 64), "qzeros": (2, 8)},
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}},
            ("U8", (64, 64)),
            {"weight_scale_inv": (2, 2)},
        ),
    ],
)
def test_a_quantised_product_takes_what_its_files_do(
    quantization: dict[str, Any],
    packed: tuple[str, tuple[int, ...]],
    scales: dict[str, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    """The query projection, 64 by 64, as each format stores it: the same bytes by arithmetic and by headers."""
    dtypes = {"scales": "BF16", "biases": "BF16", "qzeros": "I32", "g_idx": "I32", "weight_scale_inv": "F32"}
    name = "model.layers.1.self_attn.q_proj"
    stored = {key: value for key, value in TENSORS.items() if not key.startswith(name)}
    stored[f"{name}.{'qweight' if 'qzeros' in scales else 'weight'}"] = packed
    stored |= {f"{name}.{each}": (dtypes[each], shape) for each, shape in scales.items()}
    write_safetensors(write_config(tmp_path, **quantization) / "model.safetensors", stored)
    held = read_model(str(tmp_path)).decoder[1].weights.attention
    (tmp_path / "model.safetensors").unlink()
    computed = read_model(str(tmp_path)).decoder[1].weights.attention
    bits = 8 if packed[0] == "U8" else 4
    each = 64 * 64 * bits // 8 + sum(
        {"BF16": 2, "I32": 4, "F32": 4}[dtypes[key]] * (shape[0] * shape[-1] if len(shape) > 1 else shape[0])
        for key, shape in scales.items()
    )
    assert held.parameters == computed.parameters == 2 * 64 * 64
    assert held.bytes == each + 64 * 64 * 2  # the output projection is plain in this file
    assert computed.bytes == 2 * each


def test_single_modules_may_have_other_widths_or_none(tmp_path: Path) -> None:
    special = {"model.layers.1.mlp.gate": {"bits": 8, "group_size": 64}, "lm_head": False}
    write_config(tmp_path, quantization={"bits": 4, "group_size": 64, **special})
    spec = read_model(str(tmp_path))
    assert spec.decoder[1].weights.other.bytes == 4 * 64 + 4 * 4
    assert spec.decoder[2].weights.other.bytes == 4 * 64 // 2 + 4 * 4
    assert spec.head.bytes == 100 * 64 * 2
    assert spec.embedding.bytes == 100 * 64 // 2 + 100 * 4


def test_gptq_names_modules_of_other_widths_by_expressions(tmp_path: Path) -> None:
    dynamic = {r".*\.1\.self_attn\.q_proj": {"bits": 8, "group_size": 64}, r"-:.*\.1\.self_attn\.o_proj": {}}
    told = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": dynamic}
    write_config(tmp_path, quantization_config=told)
    layers = read_model(str(tmp_path)).decoder
    eight, four = 64 * 64 + 64 * 3 + 64 * 4, 64 * 64 // 2 + 2 * 64 * 5 // 2 + 64 * 4
    assert layers[1].weights.attention.bytes == eight + 64 * 64 * 2
    assert layers[2].weights.attention.bytes == 2 * four


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, which is not between 1 and"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, which is more than the 4096"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": "64"}, "hidden_size is 64, which is not a whole number"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"num_attention_heads": 7, "head_dim": None}, "hidden_size 64 does not divide by num_attention_heads 7"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 does not divide by 3 key/value heads"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, which is more than the 4 experts"),
        ({"num_experts_per_tok": None}, "lacks num_experts_per_tok"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types has 1 entries for 3 layers"),
        ({"tie_word_embeddings": 3}, "tie_word_embeddings is 3, which is neither true nor false"),
        ({"torch_dtype": "float12"}, "torch_dtype 'float12' is not one of"),
        ({"quantization": {"bits": 99}}, "bits is 99, which is more than 16"),
        ({"quantization_config": {"quant_method": "magic"}}, "quant_method 'magic' is not known"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}}, "not a pair of whole numbers"),
        ({"quantization_config": "int4"}, "quantization_config is int4, which is no JSON object"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}},
            "a regular expression that is none",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field_and_file(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_model(str(write_config(tmp_path, **changes)))
    assert message in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has only 0 bytes; download it again"),
        (struct.pack("<Q", 1 << 40) + b"{}", "says that its header has 1,099,511,627,776 bytes"),
        (struct.pack("<Q", 50) + b"{}", "says that its header has 50 bytes"),
        (struct.pack("<Q", 2) + b"[]", "holds no JSON object"),
        (struct.pack("<Q", 3) + b"nul", "is no JSON"),
        (header({"x": ("BF16", (1 << 30, 1 << 20))}), "needs 2,251,799,813,685,248 bytes"),
        (header({"x": ("BF16", (3,))}).replace(b"BF16", b"BF17"), "x has the dtype 'BF17'"),
        (header({"x": ("BF16", (3,))}).replace(b"[3]", b"[4]") + bytes(6), "x of shape [4] needs 8 bytes at [0, 6]"),
        (header({"x": ("BF16", (13,))}).replace(b"[13]", b"[-1]") + bytes(26), "the header's entry 'x' is damaged"),
    ],
)
def test_a_header_that_lies_is_refused_by_its_file(content: bytes, message: str, tmp_path: Path) -> None:
    file = write_config(tmp_path) / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_model(str(tmp_path))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@given(st.binary(max_size=80) | st.from_type(dict).map(lambda value: json.dumps(value, default=str).encode()))
def test_no_header_breaks_its_reader(text: bytes) -> None:
    try:
        found = parse_header(text, "file", 100)
    except ModelError as error:
        assert "file" in str(error)  # noqa: PT017 - most texts are refused, some are not
    else:
        assert sum(each.bytes for each in found) <= 100


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map is no table"),
        ({"weight_map": {"a": "../../etc/passwd"}}, "is not a file of its own directory"),
        ({"weight_map": {"a": "b"}, "metadata": {"total_size": -1}}, "metadata.total_size is -1"),
        ({"weight_map": {"a": "b"}, "metadata": {"total_size": 1 << 60}}, "is no size of a model"),
    ],
)
def test_an_index_that_lies_is_refused(index: dict[str, Any], message: str, tmp_path: Path) -> None:
    (write_config(tmp_path) / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=message):
        read_model(str(tmp_path))


def test_an_index_too_small_for_its_embedding_is_refused(tmp_path: Path) -> None:
    write_index(write_config(tmp_path), dict.fromkeys(TENSORS, "x.safetensors"), 1000)
    with pytest.raises(PlanError, match="said to have 1,000 bytes, less than embedding and norms need"):
        read_model(str(tmp_path))


def test_a_layer_without_weights_is_named(tmp_path: Path) -> None:
    kept = {name: value for name, value in TENSORS.items() if "layers.1." not in name}
    write_safetensors(write_config(tmp_path) / "model.safetensors", kept)
    with pytest.raises(ModelError, match="no weights for layer 1 of the 3"):
        read_model(str(tmp_path))


def test_what_is_no_model_is_refused_with_what_would_be(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        read_model(str(tmp_path))
    with pytest.raises(ModelError, match=r"no such file or directory.*qwen3-235b-a22b"):
        read_model("no such model")
    with pytest.raises(ConfigError, match="no weights are stored as 'int3'"):
        read_model("dbrx", weights="int3")
    other = {**CONFIG, "model_type": "unheard_of"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(
        ModelError,
        match=r"model_type 'unheard_of' is not a family known here.*give the directory that holds its weights",
    ):
        read_model(str(tmp_path))


def test_a_family_not_known_is_counted_from_its_headers_and_not_split(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_config(tmp_path, model_type="unheard_of")
    spec = read_model(str(tmp_path))
    assert spec.bytes == data_bytes(TENSORS)
    assert not spec.known_family
    question = Question(spec, ClusterSpec((DeviceSpec("box", 1 << 30, 1e9, {"fp32": 1e9}, "a chip (cpu)"),)))
    (caution,) = cautions(question)
    assert "unheard_of is not a family known here: cache and arithmetic of its layers are guessed" in caution
    assert "nothing is known here of how to split unheard_of" in (spec.tensor_obstacle(2) or "")


@pytest.mark.parametrize("model_type", ["llama", "unheard_of"])
def test_other_weights_count_by_the_index_that_lies_there(model_type: str, tmp_path: Path) -> None:
    total = 2 * data_bytes(TENSORS)
    write_index(write_config(tmp_path, model_type=model_type), dict.fromkeys(TENSORS, "part-1.safetensors"), total)
    stored, lighter = (read_model(str(tmp_path), weights=weights) for weights in (None, "int8"))
    assert stored.bytes == pytest.approx(total, rel=0.01)
    assert (lighter.counted, lighter.stored) == ("index", "int8 in groups of 32")
    assert 0.5 <= lighter.bytes / stored.bytes < 0.8
    assert lighter.notes == stored.notes, "also that arithmetic and the index differ"


def test_other_weights_count_by_the_headers_of_a_single_file(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_config(tmp_path, model_type="unheard_of")
    assert read_model(str(tmp_path), weights="float32").bytes == pytest.approx(2 * data_bytes(TENSORS), rel=0.01)


def test_layers_that_are_no_attention_are_told_of(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    spec = read_model(str(write_config(tmp_path, layer_types=kinds)))
    assert "layers of kind linear_attention are counted as full attention" in spec.notes[0]


def test_the_embedded_model_is_known_by_its_name() -> None:
    spec = read_model("demo")
    assert spec.counted == "headers"
    assert spec.tensor_obstacle(2) is None
