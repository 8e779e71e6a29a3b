"""A hub on loopback, as much of one as its own client asks for to download a model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """``files`` of the only model, by name; those of more than 1000 bytes are large ones. ``cut_after``: the next
    transfers of large files end after so many bytes. ``asked``: method, path and range of every request."""

    hub_id: str
    files: dict[str, bytes]
    url: str = ""
    cut_after: int | None = None
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    """Large files wait for it after their first part."""

    def info(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if is_large(data):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"id": self.hub_id, "sha": REVISION, "siblings": siblings}


def is_large(data: bytes) -> bool:
    return len(data) > 1000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.asked.append((self.command, path, self.headers.get("Range")))
        if path in (f"/api/models/{hub.hub_id}", f"/api/models/{hub.hub_id}/revision/main"):
            self.send(json.dumps(hub.info()).encode(), {"Content-Type": "application/json"})
            return
        if path.startswith(f"/api/models/{hub.hub_id}/tree/"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in hub.files.items()]  # fmt: skip
            self.send(json.dumps(tree).encode(), {"Content-Type": "application/json"})
            return
        name = path.rpartition("/")[2]
        if path.startswith(f"/{hub.hub_id}/resolve/") and name in hub.files:
            self.file(hub.files[name])
            return
        self.send(b"", {"X-Error-Code": "RepoNotFound"}, 404)

    def file(self, data: bytes) -> None:
        digest = (hashlib.sha256 if is_large(data) else hashlib.sha1)(data).hexdigest()
        headers = {"X-Repo-Commit": REVISION, "ETag": f'"{digest}"'}
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(data[start:], headers, 206 if start else 200, stop=self.hub.cut_after if is_large(data) else None)

    def send(self, body: bytes, headers: Mapping[str, str], status: int = 200, stop: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if stop is not None:
            self.wfile.write(body[:stop])
            self.wfile.flush()
            self.hub.hold.wait(10)
            self.close_connection = True
            return
        self.wfile.write(body)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.hold.set()
        server.shutdown()
        thread.join(5)
        server.server_close()
