"""What vectors go through after pooling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_encoders import add_modules
from torch import nn

from ferrule.engine.vectors import finished, read_dense
from ferrule.errors import ModelError
from ferrule.model import read_embedding


def test_dense_layers_are_those_of_torch(tmp_path: Path) -> None:
    layers = [(8, 12, "Tanh"), (12, 6, "Identity"), (6, 6, "ReLU"), (6, 5, "Sigmoid")]
    add_modules(tmp_path, "mean_tokens", *layers)
    vectors = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    right = vectors
    for number, (inputs, outputs, activation) in enumerate(layers, 2):
        linear = nn.Linear(inputs, outputs)
        torch.manual_seed(outputs)
        linear.weight.data, linear.bias.data = torch.randn(outputs, inputs), torch.randn(outputs)
        if number == 3:  # stored in 16 bits, without a bias
            file = tmp_path / f"{number}_Dense/model.safetensors"
            save_file({"linear.weight": linear.weight.data.bfloat16()}, file)
            linear.weight.data, linear.bias.data = linear.weight.data.bfloat16().float(), torch.zeros(outputs)
        right = getattr(nn, activation)()(linear(right))
    found = finished(list(vectors.numpy()), read_dense(tmp_path, read_embedding(tmp_path), 8), normalize=True)
    assert all(each.dtype == np.float32 for each in found)
    np.testing.assert_allclose(np.stack(found), nn.functional.normalize(right).detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(finished([vectors[0].numpy()], (), normalize=False)[0], vectors[0].numpy())


def test_layers_that_do_not_fit_are_named(tmp_path: Path) -> None:
    add_modules(tmp_path, "mean_tokens", (8, 12, "Tanh"))
    embedding, file = read_embedding(tmp_path), tmp_path / "2_Dense/model.safetensors"
    with pytest.raises(ModelError, match=r"linear\.weight of 9 inputs, and has one of shape \(12, 8\)"):
        read_dense(tmp_path, embedding, 9)
    save_file({"linear.weight": torch.zeros(12, 8), "linear.bias": torch.zeros(3)}, file)
    with pytest.raises(ModelError, match=r"linear\.bias of 12 numbers"):
        read_dense(tmp_path, embedding, 8)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ModelError, match=r"truncated or damaged"):
        read_dense(tmp_path, embedding, 8)
    file.unlink()
    with pytest.raises(ModelError, match=r"2_Dense holds no safetensors weights"):
        read_dense(tmp_path, embedding, 8)
