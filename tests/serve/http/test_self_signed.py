"""The certificate that a server makes itself."""

from __future__ import annotations

import hashlib
import socket
import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from running import served

from ferrule.errors import ConfigError
from ferrule.fabric.join.addresses import host_addresses
from ferrule.serve.app import create_app
from ferrule.serve.http import self_signed
from ferrule.serve.http.self_signed import SelfSigned, own_names, renew


def test_it_is_made_once_and_trusted_by_who_is_given_it(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    tls = SelfSigned("0.0.0.0", folder)
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    names, addresses = own_names("strix.lab")
    assert {"localhost", "strix.lab", socket.gethostname().lower()} <= names
    found = {ip_address(address) for _, _, address, _ in host_addresses()}
    assert {each for each in found if not each.is_link_local} <= addresses
    with served(create_app(FakeEngine(), api_key=None), tls=tls) as port:
        shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))
        assert tls.fingerprint.replace(":", "").lower() == hashlib.sha256(shown).hexdigest()
        trusting = ssl.create_default_context(cafile=tls.chain)
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
        with httpx.Client(verify=trusting) as client:
            for name in ("localhost", "127.0.0.1"):
                assert client.get(f"https://{name}:{port}/health").status_code == 200
    assert SelfSigned("0.0.0.0", folder).fingerprint == tls.fingerprint


def test_it_is_made_anew_for_another_name_and_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tls = SelfSigned("127.0.0.1", tmp_path)
    first = tls.fingerprint
    other = SelfSigned("10.9.8.7", tmp_path).fingerprint
    assert other != first
    assert "it lacked 10.9.8.7" in caplog.text
    assert SelfSigned("127.0.0.1", tmp_path).fingerprint == other, "names that were there stay"
    monkeypatch.setattr(self_signed, "RENEWED_BEFORE", self_signed.LIFE)
    renew(tmp_path)
    assert "the former one was about to end" in caplog.text
    chain = tmp_path / "cert.pem"
    kept = chain.read_text()
    monkeypatch.setattr(self_signed, "RENEWED_BEFORE", timedelta(days=30))
    monkeypatch.setattr(self_signed, "own_names", lambda host: (frozenset({"another"}), frozenset()))
    renew(tmp_path)
    assert chain.read_text() == kept, "where a server runs, a name that is new waits for the next start"
    monkeypatch.undo()
    chain.write_text("damaged")
    assert SelfSigned("127.0.0.1", tmp_path).name == "localhost"


def test_a_running_server_renews_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = SelfSigned("127.0.0.1", tmp_path)
    monkeypatch.setattr(self_signed, "RENEWED_BEFORE", self_signed.LIFE)
    monkeypatch.setattr(self_signed, "LOOK_SECONDS", -1.0)
    with served(create_app(FakeEngine(), api_key=None), tls=tls) as port:
        shown = {ssl.get_server_certificate(("127.0.0.1", port)) for _ in range(2)}
    assert len(shown) == 2
    assert (tmp_path / "cert.pem").read_text() in shown


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="own certificate cannot be kept in"):
        SelfSigned("127.0.0.1", tmp_path / "file")
