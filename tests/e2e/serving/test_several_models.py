"""`ferrule serve` with several models: loaded on demand, evicted where memory is limited, and no answer lost."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest
from server_process import start_server, wait_until

from ferrule.bench.random_model import RandomModel, save_random_llama
from ferrule.engine.source import resolve
from ferrule.engine.spec import read_spec
from ferrule.plan import make_plan, rank_memory

DOCUMENTED = {200, 503}


def needed(model: Path) -> int:
    spec = read_spec(model)
    return sum(use.total for use in rank_memory(spec, make_plan(spec), context=256))


@pytest.mark.slow
def test_a_third_model_takes_the_place_of_the_least_recently_used(tmp_path: Path) -> None:
    paths = [save_random_llama(tmp_path / name, RandomModel.tiny(), seed=at) for at, name in enumerate("ab")]
    demo = resolve("demo")
    limit = sum(needed(path) for path in [*paths, demo]) - 50_000_000  # two of them, not three
    file = tmp_path / "models.toml"
    file.write_text(
        f'[models.a]\nmodel = "{paths[0]}"\naliases = ["claude-*"]\n'
        f'[models.b]\nmodel = "{paths[1]}"\npreload = true\n'
        '[models.demo]\nmodel = "demo"\ntp = 1\n'
    )
    server = start_server(
        *("--models", str(file), "--memory-limit", str(limit), "--max-context", "256", "--no-standby"),
        *("--alias", "gpt-*=demo", "--threads", "1"),
        env={"FERRULE_CALIBRATE": "0"},
    )
    try:
        statuses: Counter[int] = Counter()
        over = threading.Event()

        def keep_asking() -> None:
            while not over.is_set():
                body = {"model": "b", "prompt": "Hi", "max_tokens": 4}
                statuses[httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code] += 1

        def loaded() -> list[str]:
            health = httpx.get(f"{server.url}/health", timeout=10).json()
            assert health["status"] == "ok"
            return [name for name, model in health["models"].items() if model["status"] == "ok"]

        assert loaded() == ["a", "b"]
        client = server.client(timeout=90)

        def answered(model: str) -> str:
            return client.completions.create(model=model, prompt="Hi", max_tokens=4, temperature=0).model

        assert answered("claude-opus-4") == "a"
        beside = threading.Thread(target=keep_asking)
        beside.start()
        try:
            wait_until(lambda: statuses[200] > 0, 30, "an answer of b")
            assert answered("gpt-4o") == "demo"  # the first one has not been used since
            assert loaded() == ["b", "demo"]
            assert answered("a") == "a"
            # If b was idle in that moment it went, and its next request takes the place of the embedded model.
            wait_until(lambda: loaded() == ["a", "b"], 30, "b beside a")
        finally:
            over.set()
            beside.join()
        assert set(statuses) <= DOCUMENTED
        assert statuses[200] > 0
        assert len(server.ranks()) == 2

        with pytest.raises(openai.NotFoundError, match="'a', 'b', 'demo'"):
            answered("llama")
        httpx.post(f"{server.url}/api/generate", json={"model": "b", "keep_alive": 0}, timeout=30)
        wait_until(lambda: loaded() == ["a"], 10, "b unloaded")
        names = [model["name"] for model in httpx.get(f"{server.url}/api/ps", timeout=10).json()["models"]]
        assert names == ["a:latest"]
    finally:
        server.stop()
    assert server.process.returncode == 0, server.output
