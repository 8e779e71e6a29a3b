"""TLS of a model server: the certificate and key that its user gives, read again when they are renewed.

It imports no web framework, so that files that cannot be used are told at once.
"""

from __future__ import annotations

import logging
import ssl
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.errors import ConfigError
from ferrule.files import file_stamp

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger(__name__)


class ServerTls:
    """TLS 1.2 or 1.3 with the certificates (PEM, the server's first) in ``chain`` and the key in ``key``, or in
    ``chain`` where that is None. Raises `ConfigError` for files that cannot be used."""

    def __init__(self, chain: Path, key: Path | None) -> None:
        self._chain, self._key = chain, key or chain
        self._stamp = self._stamps()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For the next connection: of the files as they are now, or as they were when they last could be used."""
        stamp = self._stamps()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._load()
            except ConfigError as error:  # between the writing of one file and of the other, perhaps
                log.warning("the former certificate stays in use: %s", error)
        return self._context

    @cached_property
    def name(self) -> str | None:
        """The first name or address that the certificate is for; None where it tells none, or one for many."""
        from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName

        try:
            names = self._certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        except (ExtensionNotFound, ValueError):
            return None
        found = [*names.get_values_for_type(DNSName), *map(str, names.get_values_for_type(IPAddress))]
        return next((name for name in found if "*" not in name), None)

    @property
    def signs_itself(self) -> bool:
        """Clients know such a certificate only when they are given it."""
        return self._certificate.issuer == self._certificate.subject

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, as browsers and openssl write it."""
        from cryptography.hazmat.primitives.hashes import SHA256

        return self._certificate.fingerprint(SHA256()).hex(":").upper()

    @property
    def chain(self) -> Path:
        return self._chain

    @property
    def key(self) -> Path:
        return self._key

    @cached_property
    def _certificate(self) -> Certificate:
        from cryptography.x509 import load_pem_x509_certificate

        return load_pem_x509_certificate(self._chain.read_bytes())

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [file_stamp(file) for file in (self._chain, self._key)]

    def _load(self) -> ssl.SSLContext:
        _check_pem(self._chain, b"CERTIFICATE", "certificate", "--ssl-certfile")
        _check_pem(self._key, b"PRIVATE KEY", "private key", "--ssl-keyfile")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._chain, self._key, password=self._refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(f"the key in {self._key} is not that of the certificate in {self._chain}") from None
            raise ConfigError(f"{self._chain} and {self._key} are no use for TLS: {error.reason or error}") from None
        return context

    def _refuse_password(self) -> str:
        raise ConfigError(
            f"the key in {self._key} has a password, which a server cannot type; "
            f"write one without: openssl pkey -in {self._key} -out key.pem"
        )


def _check_pem(file: Path, block: bytes, what: str, flag: str) -> None:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"the {what} in {file} cannot be read: {error.strerror} ({flag})") from None
    if block + b"-----" not in text:
        raise ConfigError(f"{file} holds no {what} in PEM format ({flag})")
