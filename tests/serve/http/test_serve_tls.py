"""TLS of the model server: with certificates made here, and clients that trust them, or do not."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fake_engine import FakeEngine
from running import served, until

from ferrule.cli.display import base_url, curl
from ferrule.cli.serving.client import ChatServer
from ferrule.errors import ConfigError, EngineError
from ferrule.serve.app import create_app
from ferrule.serve.http.listener import listen
from ferrule.serve.http.tls import ServerTls

NAMES = (x509.DNSName("*.lab"), x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")))


def make(folder: Path, *, password: bytes | None = None, names: tuple[x509.GeneralName, ...] = NAMES) -> ServerTls:
    """A certificate of its own in ``folder``; the file names say what is in them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a model server")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    (folder / "key.pem").write_bytes(private)
    (folder / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return ServerTls(folder / "cert.pem", folder / "key.pem")


def test_clients_are_answered_over_tls(tmp_path: Path) -> None:
    tls = make(tmp_path)
    app = create_app(FakeEngine(), api_key="secret")
    with served(app, tls=tls) as port:
        url = base_url("0.0.0.0", port, tls)
        assert url == f"https://localhost:{port}"
        trusting = httpx.Client(verify=ssl.create_default_context(cafile=tls.chain))
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", http_client=trusting, max_retries=0) as client:
            model = client.models.list().data[0].id
            pieces = client.completions.create(model=model, prompt="ab", max_tokens=5, stream=True)
            assert len(list(pieces)) > 1
        chat = ChatServer(url, "secret", tls.chain)
        assert chat.models() == [model]
        chat.close()
        with pytest.raises(EngineError, match=r"is not trusted here.*--cacert"):
            ChatServer(url, "secret").models()
        with pytest.raises(EngineError, match=r"broke: .*\(does it speak https\?\)"):
            ChatServer(f"http://localhost:{port}", "secret").models()
        asked = curl(url, model, chat=False, with_key=True, tls=tls)
        done = subprocess.run(
            f"{asked} -s --fail", shell=True, env=os.environ | {"FERRULE_API_KEY": "secret"}, capture_output=True
        )
        assert (done.returncode, b'"choices"' in done.stdout) == (0, True)


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(tmp_path: Path) -> None:
    """TLS 1.3 clients send it in the same flight."""
    tls = make(tmp_path)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=tls.chain).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with (
        served(create_app(FakeEngine(), api_key=None), tls=tls) as port,
        socket.create_connection(("127.0.0.1", port), 10) as raw,
    ):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(1 << 16))
        client.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        raw.sendall(outgoing.read())
        found = b""
        while b"\r\n" not in found:
            incoming.write(raw.recv(1 << 16))
            try:
                found += client.read()
            except ssl.SSLWantReadError:
                continue
    assert found.startswith(b"HTTP/1.1 200 ")


def test_connections_without_a_handshake_end_and_make_room(tmp_path: Path) -> None:
    tls = make(tmp_path)
    with served(create_app(FakeEngine(), api_key=None), tls=tls, most=4, head=1.0) as port:
        silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(8)]
        with httpx.Client(verify=ssl.create_default_context(cafile=tls.chain)) as client:
            assert client.get(f"https://localhost:{port}/health").status_code == 200
        begun = time.monotonic()
        for each in silent:
            with each:
                try:
                    assert each.recv(1) == b""
                except ConnectionResetError:
                    continue
        assert time.monotonic() - begun < 8


def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = make(tmp_path)
    first, other = (tmp_path / "cert.pem").read_bytes(), tmp_path / "other"
    other.mkdir()
    make(other)

    def shown(port: int) -> bytes:
        return ssl.get_server_certificate(("127.0.0.1", port)).encode()

    with served(create_app(FakeEngine(), api_key=None), tls=tls) as port:
        assert shown(port) == first
        (other / "cert.pem").replace(tmp_path / "cert.pem")  # the key is not yet there
        assert shown(port) == first
        assert "the former certificate stays in use" in caplog.text
        (other / "key.pem").replace(tmp_path / "key.pem")
        until(lambda: shown(port) == (tmp_path / "cert.pem").read_bytes() != first)


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    tls = make(tmp_path, names=())
    assert (tls.name, tls.signs_itself) == (None, True)
    assert base_url("::", 1, tls) == "https://[::1]:1"
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with pytest.raises(ConfigError, match=r"missing.pem cannot be read: No such file or directory \(--ssl-certfile\)"):
        ServerTls(tmp_path / "missing.pem", key)
    with pytest.raises(ConfigError, match=r"cert.pem holds no private key in PEM format \(--ssl-keyfile\)"):
        ServerTls(cert, None)
    with pytest.raises(ConfigError, match=r"key.pem holds no certificate in PEM format \(--ssl-certfile\)"):
        ServerTls(key, cert)
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    ServerTls(both, None)
    (tmp_path / "damaged.pem").write_bytes(cert.read_bytes().replace(b"M", b"?"))
    with pytest.raises(ConfigError, match=r"damaged.pem and .*key.pem are no use for TLS"):
        ServerTls(tmp_path / "damaged.pem", key)
    other = tmp_path / "other"
    other.mkdir()
    make(other)
    with pytest.raises(ConfigError, match=r"the key in .*other/key.pem is not that of the certificate in"):
        ServerTls(cert, other / "key.pem")
    with pytest.raises(ConfigError, match=r"has a password.*openssl pkey"):
        make(other, password=b"secret")


def test_beyond_loopback_the_key_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ConfigError, match="FERRULE_API_KEY"):
        listen("0.0.0.0", 0, api_key=None, encrypted=True)
    with pytest.raises(ConfigError, match=r"in the clear.*--ssl-certfile.*--plain-http"):
        listen("0.0.0.0", 0, api_key="secret", encrypted=False)
    listen("0.0.0.0", 0, api_key="secret", encrypted=True).close()
