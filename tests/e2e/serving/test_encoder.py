"""An encoder with the files of sentence-transformers, served, and asked by real clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
import torch
from server_process import Server, start_server, wait_until
from tiny_encoders import add_modules, add_tokenizer, make_encoder
from torch import nn
from transformers import AutoModel, PreTrainedTokenizerFast

from ferrule.engine.vectors import read_dense
from ferrule.model import read_embedding

LONGEST = 16
TEXTS = ["The quick brown fox", "a dog", "jumps over the lazy dogs", "light sleep", "run"] * 8
LONG = "fox " * 40


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_encoder("bert", tmp_path_factory.mktemp("encoder") / "tiny-encoder")
    add_tokenizer(made)
    add_modules(made, "mean_tokens", (32, 24, "Tanh"), longest=LONGEST)
    return made


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    found = start_server(str(directory), "--tp", "1")
    yield found
    found.stop()


def right(directory: Path, texts: list[str]) -> Any:
    """Vectors as sentence-transformers makes them: cut, pooled, through the dense layer, of length 1."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    (dense,) = read_dense(directory, read_embedding(directory), 32)
    assert dense.bias is not None
    with torch.inference_mode():
        found = []
        for text in texts:
            tokens = tokenizer(text, max_length=LONGEST, truncation=True, return_tensors="pt").input_ids
            assert tokens[0, 0] == 2
            assert tokens[0, -1] == 3
            pooled = model(tokens).last_hidden_state[0].mean(0)
            found.append(torch.from_numpy(dense.weight) @ pooled + torch.from_numpy(dense.bias))
    return nn.functional.normalize(torch.tanh(torch.stack(found))).numpy()


@pytest.mark.slow
def test_an_encoder_makes_vectors_and_nothing_else(server: Server, directory: Path) -> None:
    """Also after its rank was killed."""
    client, expected = server.client(timeout=60), right(directory, TEXTS)
    model: Any = client.models.list().data[0]
    assert (model.id, model.capabilities, model.max_model_len) == ("tiny-encoder", ["embeddings"], LONGEST)
    assert "/v1/embeddings" in server.output
    assert "tokens/s" not in server.output

    def check() -> None:
        found = client.embeddings.create(model=model.id, input=TEXTS)
        np.testing.assert_allclose([each.embedding for each in found.data], expected, atol=1e-5)

    check()
    (rank,) = server.ranks()
    rank.kill()
    check()  # which waits for another one
    wait_until(lambda: server.health().status_code == 200, 10, "ready again")
    assert [each.pid for each in server.ranks()] != [rank.pid]

    told = httpx.post(f"{server.url}/tokenize", json={"prompt": "the foxs"}, timeout=10).json()
    assert told["tokens"][0] == 2
    assert told["tokens"][-1] == 3
    by_ids = client.embeddings.create(model=model.id, input=[told["tokens"]], encoding_format="float")
    np.testing.assert_allclose(by_ids.data[0].embedding, right(directory, ["the foxs"])[0], atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="context of 16 tokens") as refused:
        client.embeddings.create(model=model.id, input=LONG)
    assert refused.value.code == "context_length_exceeded"
    for ask in (
        lambda: client.chat.completions.create(model=model.id, messages=[{"role": "user", "content": "a"}]),
        lambda: client.completions.create(model=model.id, prompt="a"),
    ):
        with pytest.raises(openai.BadRequestError, match="makes vectors"):
            ask()

    with ollama.Client(server.url, timeout=60) as other:
        shown = other.show("tiny-encoder")
        assert shown.capabilities == ["embedding"]
        assert shown.details is not None
        assert shown.details.family == "bert"
        cut = other.embed("tiny-encoder", [LONG, "a dog"]).embeddings
        np.testing.assert_allclose(cut, right(directory, [LONG, "a dog"]), atol=1e-5)
        with pytest.raises(ollama.ResponseError, match="makes vectors"):
            other.generate("tiny-encoder", "a")
