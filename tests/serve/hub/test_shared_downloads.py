"""Models that one host has downloaded and another one takes from it, by the hub's real client."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import ollama
import pytest
from fake_engine import FakeEngine
from running import running, served

from ferrule.engine.download import directory_of, download
from ferrule.errors import ModelError
from ferrule.model import Hub
from ferrule.serve.app import create_app
from ferrule.serve.hub.cache import shared_model
from ferrule.serve.keys.record import ApiKey, add_key
from ferrule.serve.keys.record import digest_of as key_digest

MODEL, KEY, LIMITED = "acme/tiny-1b", "a-key", "of-one-model"
REVISION = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = random.Random(3).randbytes(200_000)
FILES = {"config.json": b'{"model_type": "llama"}', "sub/tokenizer.json": b"{}", "model.safetensors": WEIGHTS}


def digest_of(data: bytes) -> str:
    """As the hub's client names a blob."""
    if len(data) > 1000:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    """A cache that has the model, as the hub's client lays it out, and a file that is no part of one."""
    root = tmp_path_factory.mktemp("source")
    place = root / "hub" / "models--acme--tiny-1b"
    for name, data in FILES.items():
        blob, shown = place / "blobs" / digest_of(data), place / "snapshots" / REVISION / name
        for each in (blob, shown):
            each.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        shown.symlink_to(blob)
    (root / "secret").write_text("nobody's business")
    (place / "snapshots" / REVISION / "secret").symlink_to(root / "secret")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(REVISION)
    return Hub(downloads=root / "hub")


@pytest.fixture(scope="module")
def host(source: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    add_key(keys, ApiKey("limited", key_digest(LIMITED.encode()), LIMITED[:2], 0.0, models=("fake-1b",)))
    with served(create_app(FakeEngine(), api_key=KEY, keys=keys, shared=source)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def here(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_ENDPOINT", host)
    monkeypatch.setenv("HF_TOKEN", KEY)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return Hub.from_environment()


def test_another_host_takes_a_model_as_from_the_hub(here: Hub) -> None:
    told = []
    place = download(MODEL, lambda done, total: told.append((done, total)))
    for name in ("config.json", "model.safetensors", "sub/tokenizer.json"):
        assert (place / name).read_bytes() == FILES[name]
    assert not (place / "secret").exists()
    assert told[-1][0] >= len(WEIGHTS)
    assert here.downloaded(MODEL) == place


def test_a_transfer_that_was_cut_goes_on(here: Hub) -> None:
    blobs = directory_of(here, MODEL) / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{digest_of(WEIGHTS)}.part"
    part.write_bytes(WEIGHTS[:150_000])
    told: list[int] = []
    assert (download(MODEL, lambda done, _: told.append(done)) / "model.safetensors").read_bytes() == WEIGHTS
    assert min(told) >= 150_000


def test_ollamas_pull_takes_it_from_there(here: Hub) -> None:
    with running(FakeEngine()) as url, ollama.Client(url, timeout=20) as client:
        lines = list(client.pull(MODEL, stream=True))
    assert lines[-1].status == "success"
    assert here.downloaded(MODEL) is not None


def test_keys_and_names_are_checked(host: str, here: Hub, source: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/{MODEL}/resolve/{REVISION}/model.safetensors"

    def status(path: str, key: str = KEY) -> int:
        return httpx.get(host + path, headers={"Authorization": f"Bearer {key}"}).status_code

    assert [status(path), status(path, "wrong"), status(path, LIMITED)] == [200, 401, 403]
    above = f"..%2f{REVISION}%2fconfig.json"
    for wrong in ("../../../secret", "secret", "..%2f..%2f..%2f..%2fsecret", above, "config.json/x", "a%00b", ""):
        assert status(f"/{MODEL}/resolve/main/{wrong}") == 404, wrong
    assert status(f"/api/models/{MODEL}/revision/{REVISION[::-1]}") == 404
    assert status("/api/models/acme/other") == status("/api/models/%E2%82%AC/x") == status("/api/models/a%0Ab/x") == 404
    assert shared_model(source, "../acme") is None
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(ModelError, match="tiny-1b"):
        download(MODEL, lambda *_: None)


def test_nothing_is_shared_unasked(shared_url: str) -> None:
    assert httpx.get(f"{shared_url}/api/models/{MODEL}").status_code == 404
    assert httpx.get(f"{shared_url}/{MODEL}/resolve/main/config.json").status_code == 404
