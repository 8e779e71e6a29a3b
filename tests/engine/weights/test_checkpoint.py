import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError
from ferrule.model.headers import INDEX


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    first, second = {"a": torch.arange(12.0).view(3, 4)}, {"b": torch.ones(2, dtype=torch.bfloat16)}
    save_file(first, tmp_path / "one.safetensors")
    save_file(second, tmp_path / "two.safetensors")
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_shapes_sizes_and_slices(sharded: Path) -> None:
    with Checkpoint(sharded) as checkpoint:
        assert checkpoint.tensors["a"].shape == (3, 4)
        assert (checkpoint.tensors["a"].bytes, checkpoint.tensors["b"].bytes) == (48, 4)
        (whole,) = checkpoint.read("a")
        assert torch.equal(whole, torch.arange(12.0).view(3, 4))
        parts = checkpoint.read("a", Slicing(1, 4, ((0, 1), (3, 4))))
        assert [part.flatten().tolist() for part in parts] == [[0, 4, 8], [3, 7, 11]]


def test_a_truncated_file_is_named(sharded: Path) -> None:
    file = sharded / "one.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"one\.safetensors \(\d+ bytes\) is truncated or damaged.*download it again"):
        Checkpoint(sharded)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("F6_E2M3", r"two\.safetensors: b has the dtype 'F6_E2M3', which is not known here; use weights in"),
        ("F8_E8M0", "b has the dtype 'F8_E8M0', which is not run here; use weights in"),
    ],
)
def test_a_dtype_that_is_not_run_is_named_and_the_file_not_called_damaged(
    dtype: str, message: str, sharded: Path
) -> None:
    entry = {"b": {"dtype": dtype, "shape": [2], "data_offsets": [0, 2]}}
    text = json.dumps(entry).encode()
    (sharded / "two.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(2))
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint(sharded)
    assert "damaged" not in str(caught.value)


def test_a_missing_file_is_named(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"two\.safetensors is missing"):
        Checkpoint(sharded)


def test_a_tensor_that_the_index_promises_in_vain_is_named(sharded: Path) -> None:
    save_file({"c": torch.ones(1)}, sharded / "two.safetensors")
    with pytest.raises(ModelError, match=r"two\.safetensors lacks b, which .*index\.json says it holds"):
        Checkpoint(sharded)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"other": {}}'])
def test_an_index_that_is_none_is_named(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(ModelError, match="is not a safetensors index"):
        Checkpoint(sharded)


def test_an_index_cannot_lead_out_of_its_directory(sharded: Path) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(ModelError, match="not a file of its own directory"):
        Checkpoint(sharded)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no safetensors weights"):
        Checkpoint(tmp_path)
