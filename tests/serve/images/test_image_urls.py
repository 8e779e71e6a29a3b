"""Images that are fetched: over TLS of a server here, which tests take for one of the internet."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import openai
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from running import served
from seeing import MODEL, SeeingEngine, data_url, image_file

from ferrule.errors import RequestError
from ferrule.serve.app import create_app
from ferrule.serve.http.self_signed import make_certificate
from ferrule.serve.http.tls import ServerTls
from ferrule.serve.images import fetch, take
from ferrule.serve.images.addresses import is_of_others, is_public, own_networks
from ferrule.serve.images.fetch import Fetcher
from ferrule.serve.images.shown import ShownImage

PNG = image_file()
HOST = "pictures.example"


class Site(NamedTuple):
    """``asked``: hosts and paths that came to the site; ``resolved``: names that were looked up."""

    client: openai.OpenAI
    port: int
    engine: SeeingEngine
    asked: list[tuple[str, str]]
    resolved: list[str]
    fetcher: Callable[..., Fetcher]

    def ask(self, *paths: str) -> Any:
        urls = [f"https://{HOST}:{self.port}{path}" if path[0] == "/" else path for path in paths]
        parts: Any = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": parts}], max_completion_tokens=2
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(frozenset({HOST, "other.example"}), frozenset())
    (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key)
    asked: list[tuple[str, str]] = []
    resolved: list[str] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        host = dict(scope["headers"])[b"host"].decode()
        asked.append((host, scope["path"]))
        status, headers, chunks = 200, {}, [PNG]
        match scope["path"].split("/")[1:]:
            case ["to", *where]:
                status, headers, chunks = 302, {b"location": "/".join(where).encode()}, []
            case ["round"]:
                status, headers, chunks = 307, {b"location": b"/round"}, []
            case ["none"]:
                status = 404
            case ["page"]:
                chunks = [b"<html>"]
            case ["long"]:
                chunks = [PNG, *[bytes(1 << 16)] * 400]
            case ["slow"]:
                await receive()
                await receive()
        await send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def resolve(host: str, port: int) -> list[str]:
        resolved.append(host)
        known = {HOST: ["127.0.0.1"], "other.example": ["127.0.0.1"], "inside.example": ["127.0.0.1", "10.0.0.5"],
                 "wrong.example": ["127.0.0.1"], "empty.example": []}  # fmt: skip
        if host not in known:
            raise OSError("no such name")
        return known[host]

    trusted = ssl.create_default_context(cafile=folder / "cert.pem")
    fetcher = partial(Fetcher, resolve=resolve, allowed=lambda each: each == ip_address("127.0.0.1"), context=trusted)
    engine = SeeingEngine()
    with (
        pytest.MonkeyPatch.context() as patch,
        served(answer, tls=ServerTls(folder / "cert.pem", folder / "key.pem")) as port,
        served(create_app(engine, api_key=None, fetcher=fetcher())) as front,
        openai.OpenAI(base_url=f"http://127.0.0.1:{front}/v1", api_key="none", max_retries=0, timeout=10) as client,
    ):
        patch.setattr(fetch, "MOST_BYTES", 1 << 20)
        yield Site(client, port, engine, asked, resolved, fetcher)


def test_images_are_fetched(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """From the address that was looked up, by the name of the URL; each once for a request."""
    caplog.set_level(logging.INFO)
    site.asked.clear()
    site.resolved.clear()
    site.ask("/a.png?key=secret", data_url(image_file("GIF"), "image/gif"), "/a.png?key=secret")
    assert site.engine.seen[-1] == [PNG, image_file("GIF"), PNG]
    assert site.asked == [(f"{HOST}:{site.port}", "/a.png")]
    assert site.resolved == [HOST]
    site.ask(f"/to/https://other.example:{site.port}/to//b.png")
    assert site.asked[1:] == [
        (f"{HOST}:{site.port}", f"/to/https://other.example:{site.port}/to//b.png"),
        (f"other.example:{site.port}", "/to//b.png"),
        (f"other.example:{site.port}", "/b.png"),
    ]
    assert site.resolved[1:] == [HOST, "other.example", "other.example"]
    assert not any("secret" in record.getMessage() for record in caplog.records if "uvicorn" not in record.name)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("http://pictures.example/a.png", "only https:// .* not http://pictures.example/a.png"),
        ("https://me:secret@pictures.example/a", "only https:// without a user's name"),
        ("https:///a.png", "only https://"),
        ("https://nowhere.example/a?secret", "there is no 'nowhere.example' in the public internet"),
        ("https://empty.example/a", "there is no 'empty.example'"),
        (
            "https://inside.example/a",
            "there is no 'inside.example' in the public internet; send",
        ),
        ("/to/http://pictures.example/a", "only https:// .* not http://pictures.example/a"),
        ("/to/https://inside.example/a", "there is no 'inside.example'"),
        ("/round?secret", "leads to more than 3 further URLs"),
        ("/none?secret", "/none answered with status 404"),
        ("/page", "it is no image"),
        ("/long", "gives more than 1 MiB"),
        ("https://wrong.example:{port}/a", "does not give it: .*[cC]ertificate"),
        ("https://pictures.example:1/a?secret", "does not give it"),
    ],
)
def test_images_that_cannot_be_had(site: Site, path: str, told: str) -> None:
    with pytest.raises(openai.BadRequestError, match=told) as caught:
        site.ask(path.format(port=site.port))
    assert (caught.value.param, caught.value.code) == ("messages.0.content.0", "invalid_image")
    assert "secret" not in caught.value.message


def test_an_image_has_so_many_seconds(site: Site) -> None:
    with pytest.raises(RequestError, match=r"it was not here within 0\.2 s, from https://pictures.example:"):
        asyncio.run(site.fetcher(seconds=0.2).fetch(ShownImage(f"https://{HOST}:{site.port}/slow", "here")))


def test_a_request_has_so_many_bytes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "MOST_BYTES", 2 * len(PNG))
    site.ask("/1", "/2")
    with pytest.raises(openai.BadRequestError, match="with those before it, it has more than") as caught:
        site.ask("/1", "/2", "/3")
    assert caught.value.param == "messages.0.content.2"


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/a", "https://2130706433/a", "https://[::1]/a", "https://localhost/a"]
)
def test_this_machine_is_not_asked(url: str) -> None:
    """By the fetcher as it is served."""
    with pytest.raises(RequestError, match="in the public internet"):
        asyncio.run(Fetcher().fetch(ShownImage(url, "where")))


def test_public_addresses() -> None:
    own = [ip_network("2a02:8100::/64"), ip_network("93.184.0.0/16")]
    for address in (
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "fe80::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
        "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::", "2001:db8::1",
        "2a02:8100::7", "93.184.216.34", "::ffff:93.184.216.34", "64:ff9b::5db8:d822",
    ):  # fmt: skip
        assert not is_public(ip_address(address), own), address
    for address in ("1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101"):
        assert is_public(ip_address(address)), address
    assert any(ip_address("127.0.0.1") in network for network in own_networks())
    assert not is_of_others(next(iter(own_networks()[0].hosts())))
