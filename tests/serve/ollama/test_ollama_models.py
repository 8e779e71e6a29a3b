"""Models as Ollama's clients are told of them, probes, and who may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import httpx
import ollama
import pytest
from fake_engine import FakeEngine, byte_level, demo_spec
from running import running

from ferrule.engine import RankInfo
from ferrule.model import Embedding
from ferrule.serve.answer.service import Service
from ferrule.serve.ollama.describe import details, shown
from ferrule.serve.ollama.names import means, plain, tagged
from ferrule.serve.tools.families import dialect

CHAT = {"model": "fake-1b", "messages": [{"role": "user", "content": "hi"}], "stream": False}
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def client(shared_url: str) -> Iterator[ollama.Client]:
    with ollama.Client(shared_url, timeout=10) as client:
        yield client


def test_lists(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == "acme/fake-1b:latest"
    assert model.size == demo_spec().bytes
    assert len(model.digest or "") == 64
    assert model.details is not None
    assert (model.details.family, model.details.format) == ("llama", "safetensors")
    assert (model.details.parameter_size, model.details.quantization_level) == ("3.74M", "BF16")
    (running_,) = client.ps().models
    assert (running_.name, running_.size, running_.size_vram, running_.context_length) == (
        model.model,
        2_000_000,
        0,
        512,
    )
    assert running_.expires_at is not None
    assert model.modified_at is not None
    assert running_.expires_at > model.modified_at


def test_what_is_on_accelerators_is_told_apart() -> None:
    ranks = tuple(
        RankInfo(rank, 1, "here", device, 100 + rank, 0, 0, "shm")
        for rank, device in enumerate(("cuda:0, transformers", "cpu, AVX2"))
    )
    with running(FakeEngine(ranks=ranks)) as url, ollama.Client(url, timeout=10) as client:
        (model,) = client.ps().models
        assert (model.size, model.size_vram) == (201, 100)


def test_show(client: ollama.Client) -> None:
    shown = client.show("fake-1b")
    assert shown.capabilities == ["completion", "embedding"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["general.parameter_count"] == demo_spec().parameters
    assert shown.modelinfo["llama.context_length"] == 512
    assert shown.modelinfo["llama.block_count"] == demo_spec().layers
    assert "<|assistant|>" in (shown.template or "")
    assert [line.split() for line in (shown.parameters or "").splitlines()] == [["temperature", "0.6"], ["top_k", "40"]]
    assert (shown.modelfile or "").startswith("FROM acme/fake-1b\n")
    with pytest.raises(ollama.ResponseError, match="not served here") as refused:
        client.show("llama3.2")
    assert refused.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="model: this field is required") as refused:
        client._request_raw("POST", "/api/show", json={})
    assert refused.value.status_code == 400


def test_capabilities_and_details() -> None:
    template = "{% for tool in tools %}<tool_call>{% endfor %}<think></think>"
    engine = FakeEngine(tokenizer=byte_level(template))
    told = [shown(Service(engine, dialect(template, parser))).capabilities for parser in ("auto", "none")]
    assert told == [["completion", "tools", "thinking", "embedding"], ["completion", "thinking", "embedding"]]
    encoder = replace(engine, embedding=Embedding(only=True))
    assert shown(Service(encoder, dialect(template))).capabilities == ["embedding"]
    stored = details(replace(demo_spec(), stored="GGUF Q4_K, Q6_K"))
    assert (stored.format, stored.quantization_level) == ("gguf", "Q4_K, Q6_K")


def test_names() -> None:
    engine = FakeEngine(name="Acme/Fake-1B")
    same = ("acme/fake-1b", "FAKE-1b:latest", "hf.co/Acme/Fake-1B", "https://huggingface.co/acme/fake-1b:latest")
    assert all(means(name, engine) for name in same)
    assert not any(means(name, engine) for name in ("fake", "fake-1b:q4_0", "acme/other", ""))
    assert means("llama3:8b", FakeEngine(name="llama3:8b"))
    assert (tagged("llama3:8b"), tagged("a/b"), plain("hf.co/a/b:q4")) == ("llama3:8b", "a/b:latest", "a/b:q4")


def test_probes(shared_url: str) -> None:
    for path in ("/", "/api/version", "/api/tags"):
        assert httpx.head(shared_url + path).status_code == 200
    assert httpx.get(shared_url).text == "Ollama is running"
    version = httpx.get(f"{shared_url}/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 17, 6)


@pytest.mark.parametrize(("name", "cure"), [("create", "ferrule serve"), ("copy", "--name"), ("push", "hub")])
def test_what_is_not_done_is_refused_by_its_name(shared_url: str, name: str, cure: str) -> None:
    answer = httpx.post(f"{shared_url}/api/{name}", json={"model": "x"})
    assert answer.status_code == 400
    assert f"/api/{name} is not supported" in answer.json()["error"]
    assert cure in answer.json()["error"]


def test_texts_have_vectors(client: ollama.Client, engine: FakeEngine) -> None:
    texts = ["hi", "The quick brown fox"]
    found = client.embed("fake-1b", texts)
    expected = asyncio.run(engine.embed([engine.tokenizer.encode(text) for text in texts]))
    assert [pytest.approx(vector) for vector in found.embeddings] == [each.tolist() for each in expected]
    assert found.prompt_eval_count == sum(len(engine.tokenizer.encode(text)) for text in texts)
    assert client.embeddings("fake-1b", texts[1]).embedding == pytest.approx(expected[1].tolist())
    assert "embedding" in (client.show("fake-1b").capabilities or [])
    long = "fox " * 2000
    engine.embedded.clear()
    client.embed("fake-1b", long)
    assert [len(prompt) for prompt in engine.embedded[0]] == [engine.max_context]
    with pytest.raises(ollama.ResponseError, match="context") as refused:
        client.embed("fake-1b", long, truncate=False)
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="input: must be a text"):
        client._request_raw("POST", "/api/embed", json={"model": "fake-1b", "input": 3})


def test_the_form_of_curls_examples_is_taken_from_no_browser(shared_url: str) -> None:
    """A page may send it without asking first, but not without saying so."""
    body = httpx.Request("POST", shared_url, json=CHAT).content

    def post(path: str = "/api/chat", **headers: str) -> httpx.Response:
        return httpx.post(shared_url + path, content=body, headers={"content-type": FORM, **headers})

    assert post().json()["message"]["content"]
    assert httpx.post(f"{shared_url}/api/chat", content=body).status_code == 200
    for origin in ("null", "https://evil.example", shared_url):
        assert post(origin=origin).status_code == 415
    assert post(**{"sec-fetch-site": "cross-site"}).status_code == 415
    assert post(**{"sec-fetch-site": "none", "content-type": "text/plain"}).status_code == 415
    assert post("/v1/chat/completions").status_code == 415
    assert post(host="evil.example").status_code == 403


def test_a_key_is_asked_for_everywhere() -> None:
    with running(FakeEngine(), api_key="secret") as url:
        with ollama.Client(url, timeout=10) as client, pytest.raises(ollama.ResponseError, match="API key"):
            client.list()
        assert httpx.get(url).status_code == 401
        assert httpx.post(f"{url}/api/chat", content=b"{}").status_code == 401
        with ollama.Client(url, timeout=10, headers={"Authorization": "Bearer secret"}) as client:
            assert client.chat(**CHAT).message.content


def test_errors_are_described_as_ollama_has_them(shared_url: str) -> None:
    description = httpx.get(f"{shared_url}/openapi.json").json()
    answers = description["paths"]["/api/chat"]["post"]["responses"]
    assert "422" not in answers
    assert answers["404"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/http.OllamaErrorBody"
    }
    assert description["components"]["schemas"]["http.OllamaErrorBody"]["required"] == ["error"]
