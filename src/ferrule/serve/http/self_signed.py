"""Certificate that a server makes itself: kept in the state directory, and made anew before it ends.

It signs itself, so clients must be given it (``--cacert``), or told its fingerprint by another way. It is no authority
(``CA:FALSE``), so that who trusts it trusts this server only.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from ferrule.errors import ConfigError
from ferrule.fabric.join.addresses import host_addresses
from ferrule.files import locked, state_directory, write_whole
from ferrule.serve.http.tls import ServerTls

log = logging.getLogger(__name__)

LIFE = timedelta(days=825)
"""The most that Apple's systems accept of a certificate that a user trusts."""
RENEWED_BEFORE = timedelta(days=30)
LOOK_SECONDS = 3600.0
LOCK_SECONDS = 10.0
MOST_NAMES = 100

Address = IPv4Address | IPv6Address
T = TypeVar("T")


def own_directory() -> Path:
    return state_directory() / "tls"


class SelfSigned(ServerTls):
    """TLS with this host's own certificate in ``folder``, made or renewed where need be: for ``host`` (an address or
    name to listen on) and all names and addresses that this host has. Raises `ConfigError` where it cannot be kept."""

    def __init__(self, host: str, folder: Path | None = None) -> None:
        self._host = host
        self._folder = folder or own_directory()
        self._looked = time.monotonic()
        renew(self._folder, host)
        super().__init__(self._folder / "cert.pem", self._folder / "key.pem")

    def context(self) -> ssl.SSLContext:
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            try:
                renew(self._folder)
            except ConfigError as error:
                log.error("%s", error)
        return super().context()


def renew(folder: Path, host: str | None = None) -> None:
    """Make the certificate and key of ``folder`` anew, unless they hold for a while and for all names of this host.

    ``host``: as `SelfSigned` takes it; None where a server runs: what it has changes for its end only. Names of the
    former certificate are kept: an address that comes and goes must not change it each time."""
    chain, key = folder / "cert.pem", folder / "key.pem"
    names, addresses = own_names(host or "localhost")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(folder / "lock", LOCK_SECONDS):
            former = _former(chain)
            there = _names_of(former)
            ends = datetime.now(UTC) + RENEWED_BEFORE
            lacks = set() if host is None else names - there[0] | {str(each) for each in addresses - there[1]}
            if former is not None and key.is_file() and former.not_valid_after_utc > ends and not lacks:
                return
            made, private = make_certificate(_some(names, there[0]), _some(addresses, there[1]))
            write_whole(key, private.decode(), private=True)
            write_whole(chain, made.public_bytes(serialization.Encoding.PEM).decode())
    except (OSError, TimeoutError) as error:
        raise ConfigError(f"the server's own certificate cannot be kept in {folder}: {error}") from None
    if former is not None:
        why = f"it lacked {', '.join(sorted(lacks))}" if lacks else "the former one was about to end"
        log.warning("%s is made anew (%s); clients that trust the former one must be given it", chain, why)


def make_certificate(names: frozenset[str], addresses: frozenset[Address]) -> tuple[x509.Certificate, bytes]:
    """A self-signed certificate (P-256), and its key (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ferrule")])
    now = datetime.now(UTC)
    usage = dict.fromkeys(("key_encipherment", "data_encipherment", "key_agreement", "content_commitment"), False)
    signs = dict.fromkeys(("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in sorted(names, key=_localhost_first)]
    alternatives += [x509.IPAddress(each) for each in sorted(addresses, key=str)]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage, **signs), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made, private


def _localhost_first(name: str) -> tuple[bool, str]:
    """The first name is the one by which `ferrule serve` shows its own address."""
    return name != "localhost", name


def own_names(host: str) -> tuple[frozenset[str], frozenset[Address]]:
    """Names and addresses by which this host may be asked: ``host``, its own name, also by mDNS, and all its addresses
    but those that hold for one link only."""
    own = socket.gethostname().lower().rstrip(".")
    names = {"localhost", own} | ({f"{own}.local"} if "." not in own else set())
    addresses = {ip_address(address) for _, _, address, _ in host_addresses()}
    addresses |= {ip_address("127.0.0.1"), ip_address("::1")}
    try:
        addresses.add(ip_address(host))
    except ValueError:
        names.add(host.lower())
    return (
        frozenset(name for name in names if _is_dns(name)),
        frozenset(each for each in addresses if not each.is_link_local and not each.is_unspecified),
    )


def _is_dns(name: str) -> bool:
    return (
        0 < len(name) <= 253
        and all(part and part.replace("-", "").isalnum() for part in name.split("."))
        and (name.isascii())
    )


def _some(now: frozenset[T], former: frozenset[T]) -> frozenset[T]:
    """``now``, and of ``former`` as many as there is room for."""
    return now | frozenset(sorted(former - now, key=str)[: max(0, MOST_NAMES - len(now))])


def _former(chain: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(chain.read_bytes())
    except (OSError, ValueError):  # none, or damaged: another is made
        return None


def _names_of(certificate: x509.Certificate | None) -> tuple[frozenset[str], frozenset[Address]]:
    if certificate is None:
        return frozenset(), frozenset()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:  # somebody's own
        return frozenset(), frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (
        frozenset(names.get_values_for_type(x509.DNSName)),
        frozenset(each for each in addresses if isinstance(each, (IPv4Address, IPv6Address))),
    )
