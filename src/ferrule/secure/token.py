"""The cluster's key, its public name, keys for single purposes, and the token with which a host joins."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass

import msgspec

from ferrule.config import parse_address
from ferrule.errors import ConfigError

KEY_BYTES = 32
PREFIX = "ferrule1-"
_CHECK_BYTES = 4
_MAX_TOKEN = 2048
_MAX_ADDRESSES = 8
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")

Address = tuple[str, int]
"""Host and port. An IPv6 link-local host carries its interface: ``fe80::1%thunderbolt0``."""


def fingerprint(key: bytes) -> str:
    """A cluster's public name: 16 hexadecimal letters that follow from its key and tell nothing of it."""
    return hmac.new(key, b"ferrule cluster fingerprint", hashlib.sha256).hexdigest()[:16]


def derived_key(key: bytes, purpose: str) -> str:
    """A key for one purpose, in hexadecimal, which every member makes for itself: it never crosses the wire."""
    return hmac.new(key, b"ferrule derived\0" + purpose.encode(), hashlib.sha256).hexdigest()


class _Fields(msgspec.Struct, frozen=True, tag_field="t", tag="join"):
    """Of a token, beside the key: the cluster's name and addresses. Earlier versions wrote no ``t``."""

    n: str
    a: tuple[str, ...]


@dataclass(frozen=True)
class JoinToken:
    """Join token: what a new member needs to know. With it programs can be run on every host of the cluster: keep it
    secret.

    ``addresses``: of the host that made it, when it did.
    """

    cluster: str
    key: bytes
    addresses: tuple[Address, ...] = ()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)

    def encode(self) -> str:
        fields = _Fields(self.cluster, tuple(map(write_address, self.addresses[:_MAX_ADDRESSES])))
        body = self.key + msgspec.json.encode(fields)
        return PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """Raises `ConfigError` for what is no token, or one that lost a letter on its way."""
        text = "".join(text.split())  # terminals wrap it
        if not text.startswith(PREFIX) or len(text) > _MAX_TOKEN:
            raise ConfigError(f"that is no join token: it begins with {PREFIX}; print one with: ferrule token")
        letters = text.removeprefix(PREFIX)
        try:
            data = base64.b64decode(letters + "=" * (-len(letters) % 4), altchars=b"-_", validate=True)
            body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
            if len(body) <= KEY_BYTES or not hmac.compare_digest(check, _check(body)):
                raise ValueError("the check letters differ")
            fields = msgspec.json.decode(body[KEY_BYTES:], type=_Fields)
            addresses = tuple(parse_address(each, "the token's address") for each in fields.a)
            return cls(check_cluster_name(fields.n), body[:KEY_BYTES], addresses)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(
                f"the join token is damaged ({error}): copy all of the line that `ferrule token` prints"
            ) from None


def check_cluster_name(name: object) -> str:
    """Raises `ConfigError` for what cannot name a cluster (it is part of file names and of mDNS records)."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a cluster; use up to 32 small letters, digits and dashes")
    return name


def write_address(address: Address) -> str:
    """``host:port``; an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check(body: bytes) -> bytes:
    return hashlib.sha256(b"ferrule token" + body).digest()[:_CHECK_BYTES]
