"""Downloads through the real client of a hub, from a hub on loopback, and models that are deleted."""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import httpx
import ollama
import pytest
from fake_hub import FakeHub, serving
from huggingface_hub import constants, file_download
from running import until

from ferrule.engine import download
from ferrule.engine.source import resolve
from ferrule.errors import ModelError
from ferrule.model import Hub
from ferrule.serve.ollama import pull

MODEL = "acme/tiny-1b"
WEIGHTS = random.Random(7).randbytes(300_000)
DIGEST = f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"x" * 5000,
    "README.md": b"# Tiny",
}
NEEDED = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub(MODEL, dict(FILES))) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
        monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda _: None))  # between its attempts
        yield hub


@pytest.fixture
def client(shared_url: str, hub: FakeHub) -> Iterator[ollama.Client]:
    with ollama.Client(shared_url, timeout=20) as client:
        yield client


def held(name: str = MODEL) -> Path | None:
    return Hub.from_environment().downloaded(name)


def parts(hub: FakeHub) -> list[Path]:
    return list(download.directory_of(Hub.from_environment(), hub.hub_id).glob("blobs/*.part"))


def ranges(hub: FakeHub) -> list[str | None]:
    return [each for method, path, each in hub.asked if method == "GET" and path.endswith("model.safetensors")]


def test_a_model_is_pulled_and_deleted(client: ollama.Client, hub: FakeHub) -> None:
    lines = list(client.pull(f"hf.co/{MODEL}", stream=True))
    statuses = [line.status or "" for line in lines]
    assert statuses[0] == "pulling manifest"
    assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    weights = [line for line in lines if line.digest == DIGEST]
    assert {line.status for line in weights} == {f"pulling {DIGEST[7:19]}"}
    assert {line.total for line in weights} == {len(WEIGHTS)}
    assert weights[-1].completed == len(WEIGHTS)
    place = held()
    assert place is not None
    assert sorted(each.name for each in place.iterdir()) == NEEDED
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert parts(hub) == []

    again = client.pull(f"{MODEL}:latest")
    assert again.status == "success"
    assert ranges(hub) == [None]  # it was here

    assert client.delete(MODEL).status == "success"
    assert held() is None
    with pytest.raises(ollama.ResponseError, match="was not downloaded") as missing:
        client.delete(MODEL)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="is being served"):
        client.delete("fake-1b:latest")


def test_what_was_cut_short_is_taken_up(client: ollama.Client, hub: FakeHub) -> None:
    hub.cut_after = 100_000
    hub.hold.set()
    with (
        patch.object(file_download, "http_get", _once(file_download.http_get)),
        pytest.raises(ollama.ResponseError, match=r"cannot be downloaded from .* kept: try again"),
    ):
        list(client.pull(MODEL, stream=True))
    (part,) = parts(hub)
    assert part.read_bytes() == WEIGHTS[:100_000]
    assert held() is None
    hub.cut_after = None
    weights = [line.completed for line in client.pull(MODEL, stream=True) if line.digest == DIGEST]
    assert ranges(hub)[-1] == "bytes=100000-"
    assert weights[-1] == len(WEIGHTS)
    place = held()
    assert place is not None
    assert (place / "model.safetensors").read_bytes() == WEIGHTS


def _once(get: object) -> object:
    """The hub's transfer without its five further attempts."""

    def once(*args: object, **options: object) -> object:
        return get(*args, **options, _nb_retries=0)  # type: ignore[operator]

    return once


def test_what_arrives_damaged_is_not_kept(client: ollama.Client, hub: FakeHub) -> None:
    good = hub.info
    hub.info = lambda: json.loads(json.dumps(good()).replace(DIGEST[7:], "0" * 64))  # type: ignore[method-assign]
    with pytest.raises(ollama.ResponseError, match=r"model\.safetensors arrived damaged"):
        client.pull(MODEL)
    assert parts(hub) == []
    assert held() is None


def test_a_client_that_leaves_ends_the_download(shared_url: str, hub: FakeHub) -> None:
    hub.cut_after = 100_000
    with httpx.stream("POST", f"{shared_url}/api/pull", json={"model": MODEL}, timeout=10) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = response.iter_lines()
        while json.loads(next(lines)).get("digest") != DIGEST:
            pass
        until(lambda: bool(parts(hub)))
    hub.cut_after = None
    hub.hold.set()
    with ollama.Client(shared_url, timeout=20) as client:
        until(lambda: _can_pull(client))
    assert held() is not None


def _can_pull(client: ollama.Client) -> bool:
    """Whether the file is not locked any more by the download that was left."""
    try:
        return client.pull(MODEL).status == "success"
    except ollama.ResponseError as error:
        assert "being downloaded already" in str(error)  # noqa: PT017
        return False


def test_what_cannot_be_pulled_says_why(
    client: ollama.Client, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, shared_url: str
) -> None:
    for name, why in (
        ("llama3.2", "not from Ollama's library"),
        (f"hf.co/{MODEL}:Q4_K_M", "tags such as 'Q4_K_M'"),
        ("../../etc/passwd", "no id of the hub"),
        ("acme/other", f"{hub.url} knows no model acme/other"),
    ):
        with pytest.raises(ollama.ResponseError, match=why):
            client.pull(name)
    with patch.object(download, "SPARE_BYTES", 2**60), pytest.raises(ollama.ResponseError, match="its disk has"):
        client.pull(MODEL)
    assert ranges(hub) == []
    with patch.object(pull, "MOST_PULLS", 0), pytest.raises(ollama.ResponseError) as busy:
        client.pull(MODEL)
    assert busy.value.status_code == 429
    del hub.files["model.safetensors"]
    with pytest.raises(ollama.ResponseError, match=r"no config\.json with safetensors"):
        list(client.pull(MODEL, stream=True))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ollama.ResponseError, match=r"cannot be downloaded from http://127\.0\.0\.1:9"):
        client.pull(MODEL)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ollama.ResponseError, match="HF_HUB_OFFLINE is set"):
        client.pull(MODEL)


def test_a_server_downloads_in_the_same_way(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def found() -> Path:
        return resolve(MODEL, lambda done, total: told.append((done, total)))

    with patch.object(download, "SPARE_BYTES", 2**60), pytest.raises(ModelError, match="its disk has"):
        found()
    assert ranges(hub) == []  # before anything is downloaded
    hub.cut_after = 100_000
    hub.hold.set()
    with (
        patch.object(file_download, "http_get", _once(file_download.http_get)),
        pytest.raises(ModelError, match=r"cannot be downloaded from .* kept: try again"),
    ):
        found()
    hub.cut_after = None
    good = hub.info
    hub.info = lambda: json.loads(json.dumps(good()).replace(DIGEST[7:], "0" * 64))  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=r"model\.safetensors arrived damaged"):
        found()
    hub.info = good  # type: ignore[method-assign]
    hub.asked.clear()
    place = found()
    assert ranges(hub) == ["bytes=100000-"]
    assert sorted(each.name for each in place.iterdir()) == NEEDED
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    needed = sum(len(FILES[name]) for name in NEEDED)
    assert told[-1] == (needed, needed)
    hub.asked.clear()
    assert found() == place
    assert [path for _, path, _ in hub.asked] == [f"/api/models/{MODEL}"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert found() == place  # the hub is not needed
    with pytest.raises(ModelError, match="acme/other: no such directory here, and not on the hub"):
        resolve("acme/other")


def test_a_download_waits_for_that_of_another_program(hub: FakeHub) -> None:
    blob = download.directory_of(Hub.from_environment(), MODEL) / "blobs" / DIGEST[7:]
    blob.parent.mkdir(parents=True)
    part = blob.with_name(f"{blob.name}.part")
    places: list[Path] = []
    waiting = threading.Thread(target=lambda: places.append(resolve(MODEL)))
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting.start()
        until(lambda: any(path.endswith("tokenizer.json") for _, path, _ in hub.asked))
        waiting.join(0.05)
        assert waiting.is_alive()
        other.write(WEIGHTS)
        part.rename(blob)
    waiting.join(20)
    assert (places[0] / "model.safetensors").read_bytes() == WEIGHTS
    assert ranges(hub) == []  # the other program has brought it
