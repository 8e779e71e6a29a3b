"""Open WebUI's sequence of requests, as a connection of Ollama's kind and of OpenAI's: the shapes are its own (its
`routers/ollama.py`, `routers/openai.py`, `routers/tasks.py`, `utils/payload.py`), the contents are not."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import httpx
from fake_engine import TEXT, FakeEngine
from running import running

USER = {
    "X-OpenWebUI-User-Name": "Ada%20L",
    "X-OpenWebUI-User-Id": "7c5a3b1e",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "admin",
}
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sesame", **USER}
TITLE = '### Task:\nWrite a title of three words for the chat.\n### Output:\nJSON: {"title": "…"}'
TAGS = '### Task:\nWrite 1-3 tags for the chat.\n### Output:\nJSON: {"tags": ["…"]}'


def content_of(answer: Any) -> Any:
    return answer.raise_for_status().json()


def test_as_a_connection_of_ollama() -> None:
    engine = FakeEngine(max_context=2048)
    with running(engine, api_key="sesame") as url, httpx.Client(base_url=url, headers=HEADERS, timeout=10) as client:
        # The connection is tried, and the models are listed with the time at which each leaves the memory.
        assert content_of(client.get("/api/version"))["version"]
        models = content_of(client.get("/api/tags"))["models"]
        loaded = content_of(client.get("/api/ps"))["models"]
        assert {each["name"] for each in loaded} <= {each["name"] for each in models}
        assert all(datetime.fromisoformat(each["expires_at"]).timestamp() > 0 for each in loaded)
        model = models[0]["model"]
        shown = content_of(client.post("/api/show", json={"model": model}))
        assert "completion" in shown["capabilities"]

        # A chat: what the page sets goes into options, where some are of loading, and some are unknown to Ollama.
        chat = {
            "model": model,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "What jumps?"},
            ],
            "stream": True,
            "options": {
                "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "seed": 42, "num_ctx": 4096,
                "num_keep": 24, "num_batch": 512, "num_thread": 8, "num_gpu": 99, "use_mmap": True, "use_mlock": False,
                "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "tfs_z": 1, "repeat_last_n": 64,
                "repeat_penalty": 0.0, "new_topic_penalty": 0.0, "num_predict": 64, "stop": ["###"],
            },
            "keep_alive": "5m",
        }  # fmt: skip
        with client.stream("POST", "/api/chat", content=json.dumps(chat)) as stream:
            lines = [json.loads(line) for line in stream.iter_lines()]
        assert "".join(line["message"]["content"] for line in lines)
        last = lines[-1]
        assert last["done"]
        # It shows tokens per second by these.
        assert last["eval_count"] / (last["eval_duration"] / 1e9) > 0
        assert last["prompt_eval_count"] / (last["prompt_eval_duration"] / 1e9) > 0
        assert {"total_duration", "load_duration"} <= last.keys()

        # Afterwards a title and tags, whole.
        for task in (TITLE, TAGS):
            asked = {
                "model": model,
                "messages": [{"role": "user", "content": task}],
                "stream": False,
                "options": {"num_predict": 1000},
            }
            assert content_of(client.post("/api/chat", content=json.dumps(asked)))["message"]["content"] == TEXT
        # The model is taken out of memory on the admin's page, which only asks for it.
        assert content_of(client.post("/api/generate", json={"model": model, "keep_alive": 0}))["done"]
        # What it shows of an error is its `error`.
        refused = client.post("/api/chat", json={**chat, "model": "gone:latest"})
        assert (refused.status_code, list(refused.json())) == (404, ["error"])


def test_as_a_connection_of_openai() -> None:
    engine = FakeEngine(max_context=2048)
    with running(engine, api_key="sesame") as url, httpx.Client(base_url=url, headers=HEADERS, timeout=10) as client:
        models = content_of(client.get("/v1/models"))["data"]
        model = models[0]["id"]
        chat = {
            "model": model,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "What jumps?"}]},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.8,
            "top_p": 0.9,
            "max_tokens": 64,
            "frequency_penalty": 0.0,
            "stop": ["###"],
            "user": {"name": "Ada", "id": "7c5a3b1e", "email": "ada@example.org", "role": "admin"},
        }
        with client.stream("POST", "/v1/chat/completions", content=json.dumps(chat)) as stream:
            events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        for task in (TITLE, TAGS):
            asked = {
                "model": model,
                "messages": [{"role": "user", "content": task}],
                "stream": False,
                "max_completion_tokens": 1000,
            }
            answer = content_of(client.post("/v1/chat/completions", content=json.dumps(asked)))
            assert answer["choices"][0]["message"]["content"] == TEXT
