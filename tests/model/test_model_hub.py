"""Hub ids, against a hub of our own on a loopback port."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from written_models import CONFIG, data_bytes, header, tensors_of_config, write_config, write_safetensors

from ferrule.errors import ModelError
from ferrule.model import Hub, read_model
from ferrule.model.hub import FRESH

TENSORS = tensors_of_config()
INDEX = "model.safetensors.index.json"


class LocalHub:
    """A hub with ``files`` by path; ``asked``: path, token and range of each request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.ranges = True
        self.status = 0
        self.moved: dict[str, str] = {}

    def add(self, hub_id: str, **files: bytes) -> None:
        self.files |= {f"/{hub_id}/resolve/main/{name}": content for name, content in files.items()}


def handler_of(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            hub.asked.append((self.path, self.headers["Authorization"], wanted))
            content = hub.files.get(self.path)
            status = hub.status or (404 if content is None else 200)
            if self.path in hub.moved:
                self.send_response(302)
                self.send_header("Location", hub.moved[self.path])
                self.end_headers()
                return
            if status == 200 and wanted and hub.ranges and content is not None:
                first, last = wanted.removeprefix("bytes=").split("-")
                status, content = 206, content[int(first) : int(last) + 1]
            self.send_response(status)
            self.end_headers()
            if status < 300:
                with contextlib.suppress(ConnectionError):  # who asked has read enough
                    self.wfile.write(content or b"")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalHub, str]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(hub))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield hub, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def index(total: int) -> bytes:
    return json.dumps(
        {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(TENSORS, "part.safetensors")}
    ).encode()


def test_two_small_files_are_enough_and_are_kept(local: tuple[LocalHub, str], tmp_path: Path) -> None:
    server, endpoint = local
    server.add("some/model", **{"config.json": json.dumps(CONFIG).encode(), INDEX: index(data_bytes(TENSORS))})
    hub = Hub(endpoint, token="a secret", cache=tmp_path)
    spec = read_model("some/model", hub=hub)
    assert (spec.name, spec.counted, spec.bytes) == ("some/model", "index", data_bytes(TENSORS))
    assert [path.rpartition("/")[2] for path, _, _ in server.asked] == ["config.json", INDEX]
    assert {token for _, token, _ in server.asked} == {"Bearer a secret"}
    assert read_model("some/model", hub=hub) == spec
    assert read_model("some/model", hub=replace(hub, offline=True)) == spec
    assert len(server.asked) == 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_single_file_is_asked_for_its_header_only(ranges: bool, local: tuple[LocalHub, str], tmp_path: Path) -> None:
    server, endpoint = local
    server.ranges = ranges
    weights = header(TENSORS)
    server.add("some/model", **{"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights + bytes(1000)})
    hub = Hub(endpoint, cache=tmp_path)
    spec = read_model("some/model", hub=hub)
    assert (spec.counted, spec.bytes) == ("headers", data_bytes(TENSORS))
    assert [wanted for _, _, wanted in server.asked] == [None, None, "bytes=0-7", f"bytes=8-{len(weights) - 1}"]
    assert read_model("some/model", hub=hub) == spec
    assert len(server.asked) == 4


def test_a_token_does_not_follow_to_another_host(local: tuple[LocalHub, str], tmp_path: Path) -> None:
    server, endpoint = local
    elsewhere = "/stored"
    server.files[elsewhere] = json.dumps(CONFIG).encode()
    server.moved["/some/model/resolve/main/config.json"] = endpoint.replace("127.0.0.1", "localhost") + elsewhere
    server.add("some/model", **{"model.safetensors": header(TENSORS)})
    read_model("some/model", hub=Hub(endpoint, token="a secret", cache=tmp_path))
    tokens = {path: token for path, token, _ in server.asked}
    assert tokens["/some/model/resolve/main/config.json"] == "Bearer a secret"
    assert tokens[elsewhere] is None


def test_old_files_are_asked_for_again_and_used_where_the_hub_is_away(
    local: tuple[LocalHub, str], tmp_path: Path
) -> None:
    server, endpoint = local
    server.add("some/model", **{"config.json": json.dumps(CONFIG).encode(), INDEX: index(data_bytes(TENSORS))})
    hub = Hub(endpoint, cache=tmp_path)
    spec = read_model("some/model", hub=hub)
    for file in tmp_path.rglob("*.json"):
        os.utime(file, (0, file.stat().st_mtime - 2 * FRESH))
    server.status = 503
    assert read_model("some/model", hub=hub) == spec
    assert len(server.asked) == 4
    server.status = 0
    server.add("some/model", **{"config.json": json.dumps(CONFIG | {"vocab_size": 50}).encode()})
    assert read_model("some/model", hub=hub).vocab_size == 50


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "accept its license there and set HF_TOKEN"),
        (503, "answered 503; try again"),
        (404, "knows no such model"),
    ],
)
def test_what_the_hub_refuses_is_told_with_the_cure(
    status: int, message: str, local: tuple[LocalHub, str], tmp_path: Path
) -> None:
    server, endpoint = local
    server.status = status
    with pytest.raises(ModelError, match=message):
        read_model("some/model", hub=Hub(endpoint, cache=tmp_path))


def test_without_a_hub_the_cure_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"never looked up and HF_HUB_OFFLINE is set; .*download its config\.json"):
        read_model("some/model", hub=Hub(offline=True, cache=tmp_path))
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        read_model("some/model", hub=Hub("http://127.0.0.1:9", cache=tmp_path))


def test_files_larger_than_such_files_are_refused(local: tuple[LocalHub, str], tmp_path: Path) -> None:
    server, endpoint = local
    server.add("some/model", **{"config.json": b" " * (5 << 20)})
    with pytest.raises(ModelError, match="has more than the 4,194,304 bytes that such a file needs"):
        read_model("some/model", hub=Hub(endpoint, cache=tmp_path))
    server.add("some/model", **{"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"\xff" * 100})
    with pytest.raises(ModelError, match="says that its header has"):
        read_model("some/model", hub=Hub(endpoint, cache=tmp_path))


def test_what_is_downloaded_already_is_read_from_there(tmp_path: Path) -> None:
    hub = Hub(offline=True, cache=tmp_path, downloads=tmp_path)
    place = tmp_path / "models--some--model"
    snapshot = place / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    write_safetensors(write_config(snapshot) / "model.safetensors", TENSORS)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("../../elsewhere")
    with pytest.raises(ModelError, match="never looked up"):
        read_model("some/model", hub=hub)
    (place / "refs" / "main").write_text("0" * 40)
    spec = read_model("some/model", hub=hub)
    assert (spec.name, spec.counted, spec.bytes) == ("some/model", "headers", data_bytes(TENSORS))


def test_settings_come_from_the_environment() -> None:
    given = {"HF_ENDPOINT": "https://mirror.test/", "HF_TOKEN": "t", "HF_HUB_OFFLINE": "1", "HF_HOME": "/models"}
    assert Hub.from_environment(given) == Hub("https://mirror.test", "t", True, downloads=Path("/models/hub"))
    assert Hub.from_environment({}).downloads == Path.home() / ".cache/huggingface/hub"
    assert Hub.from_environment({"HF_HUB_CACHE": "/hub"}).downloads == Path("/hub")
    assert Hub.from_environment({}).endpoint == "https://huggingface.co"
