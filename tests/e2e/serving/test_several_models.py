"""`ferrule serve` with several models: loaded on demand, evicted where memory is limited, and no answer lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest
from server_process import start_server, wait_until

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine.source import resolve
from ferrule.engine.spec import read_spec
from ferrule.plan import make_plan, rank_memory

DOCUMENTED = {200, 503}


def needed(model: Path) -> int:
    spec = read_spec(model)
    return sum(use.total for use in rank_memory(spec, make_plan(spec), context=256))


def made_an_embedder(model: Path) -> None:
    """As sentence-transformers saves one: pooling over the last token, vectors of length 1."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))


@pytest.mark.slow
def test_another_model_takes_the_place_of_the_least_recently_used(tmp_path: Path) -> None:
    names = ("a", "b", "vectors")
    paths = [save_random_model(tmp_path / name, RandomModel.tiny(), seed=at) for at, name in enumerate(names)]
    made_an_embedder(paths[2])
    demo = resolve("demo")
    limit = sum(needed(path) for path in [*paths, demo]) - 50_000_000  # three of them, not four
    file = tmp_path / "models.toml"
    file.write_text(
        f'[models.a]\nmodel = "{paths[0]}"\naliases = ["claude-*"]\n'
        f'[models.b]\nmodel = "{paths[1]}"\npreload = true\n'
        f'[models.vectors]\nmodel = "{paths[2]}"\npreload = true\n'
        '[models.demo]\nmodel = "demo"\ntp = 1\n'
    )
    server = start_server(
        *("--models", str(file), "--memory-limit", str(limit), "--max-context", "256"),
        *("--alias", "gpt-*=demo", "--threads", "1"),
        env={"FERRULE_CALIBRATE": "0"},
    )
    try:
        statuses: Counter[int] = Counter()
        vectors: set[str] = set()
        over = threading.Event()

        def keep_asking() -> None:
            while not over.is_set():
                answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "vectors", "input": "Hi"}, timeout=60)
                statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    vectors.add(str(answer.json()["data"][0]["embedding"]))

        def loaded() -> list[str]:
            health = httpx.get(f"{server.url}/health", timeout=10).json()
            assert health["status"] == "ok"
            return [name for name, model in health["models"].items() if model["status"] == "ok"]

        assert loaded() == ["a", "b", "vectors"]
        client = server.client(timeout=90)

        def answered(model: str) -> str:
            return client.completions.create(model=model, prompt="Hi", max_tokens=4, temperature=0).model

        assert answered("claude-opus-4") == "a"
        assert answered("b") == "b"
        beside = threading.Thread(target=keep_asking)
        beside.start()
        try:
            wait_until(lambda: statuses[200] > 0, 30, "a vector")
            assert answered("gpt-4o") == "demo"  # the first one has not been used since
            assert loaded() == ["b", "vectors", "demo"]
            assert answered("a") == "a"
            assert loaded() == ["a", "vectors", "demo"]
        finally:
            over.set()
            beside.join()
        assert set(statuses) <= DOCUMENTED
        assert len(vectors) == 1
        assert len(server.ranks()) == 3

        with pytest.raises(openai.NotFoundError, match="'a', 'b', 'vectors', 'demo'"):
            answered("llama")
        httpx.post(f"{server.url}/api/generate", json={"model": "demo", "keep_alive": 0}, timeout=30)
        wait_until(lambda: loaded() == ["a", "vectors"], 10, "the embedded model unloaded")
        names = [model["name"] for model in httpx.get(f"{server.url}/api/ps", timeout=10).json()["models"]]
        assert names == ["a:latest", "vectors:latest"]
    finally:
        server.stop()
    assert server.process.returncode == 0, server.output
