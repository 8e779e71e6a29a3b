"""TLS 1.3 over bytes that others carry, bound to the proof of the cluster's key (`ferrule.secure.handshake`).

There is no authority and nothing to hand out: a server makes itself a certificate when it first needs one, and keeps
its key in memory only, but for the moment in which Python reads it from a file. That the certificate is the right one
is what the binding proves, so nothing in it is looked at.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from ferrule.errors import AuthError
from ferrule.secure.handshake import Exchange, Line, Opening

_HEAD = struct.Struct(">3x H")
_MOST_RECORD = (1 << 14) + 256
"""Bytes of a record, as RFC 8446 limits them."""
_CHUNK = 1 << 16


class Tls:
    """One end of a connection: a `Line` for the handshake, then `encrypt` and `decrypt`. It does no input or output."""

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self.binding = b""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)

    def handshake(self) -> Exchange[None]:
        """Raises `AuthError` for what is no TLS, or was altered."""
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError as error:
                raise AuthError(f"the connection cannot be encrypted: {error.reason or error}") from None
            if self._outgoing.pending:
                yield self._outgoing.read()
            if done:
                return
            yield from self._record()

    def read(self, count: int) -> Exchange[bytes]:
        """``count`` bytes, and not a byte more from the connection than the records that they are in."""
        data = b""
        while len(data) < count:
            try:
                piece = self._tls.read(count - len(data))
            except ssl.SSLWantReadError:
                yield from self._record()
                continue
            except ssl.SSLError:
                raise _altered() from None
            if not piece:
                raise AuthError("the other end closed the connection before it had proved itself")
            data += piece
        return data

    def write(self, data: bytes) -> Exchange[None]:
        yield self.encrypt(data)

    def encrypt(self, data: bytes) -> bytes:
        """Bytes to send for ``data``."""
        self._tls.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Data that are complete once ``data`` has come. Raises `AuthError` where it was altered on its way."""
        self._incoming.write(data)
        found = bytearray()
        try:
            while piece := self._tls.read(_CHUNK):
                found += piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            raise _altered() from None
        return bytes(found)

    @property
    def certificate(self) -> bytes:
        """The other end's."""
        return self._tls.getpeercert(binary_form=True) or b""

    def _record(self) -> Exchange[None]:
        head: bytes = yield _HEAD.size
        (length,) = _HEAD.unpack(head)
        if not 0 < length <= _MOST_RECORD:
            raise AuthError("the connection cannot be encrypted: what comes is no TLS")
        body: bytes = yield length
        self._incoming.write(head + body)


def client_opening() -> Exchange[Line]:
    """Begins TLS at the client's end."""
    tls = Tls(_client_context(), server=False)
    yield from tls.handshake()
    tls.binding = hashlib.sha256(tls.certificate).digest()
    return tls


def server_opening() -> Opening:
    """Opening of TLS at the server's end, with this process's certificate."""
    context, binding = _own_certificate()

    def opening() -> Exchange[Line]:
        tls = Tls(context, server=True)
        yield from tls.handshake()
        tls.binding = binding
        return tls

    return opening


@cache
def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the binding is what proves it
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


@cache
def _own_certificate() -> tuple[ssl.SSLContext, bytes]:
    """This process's certificate, ready for use, and its binding."""
    certificate, pem = _make_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is taken up again: each connection proves itself
    with tempfile.TemporaryDirectory(prefix="ferrule-") as folder:  # Python takes it from a file only
        file = Path(folder) / "certificate.pem"
        file.touch(mode=0o600)
        file.write_bytes(pem)
        context.load_cert_chain(file)
    return (context, hashlib.sha256(certificate).digest())


def _make_certificate() -> tuple[bytes, bytes]:
    """A self-signed certificate (DER), and it with its key (PEM)."""
    from cryptography import x509  # a client needs none of this
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ferrule")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.DER), made.public_bytes(serialization.Encoding.PEM) + private


def _altered() -> AuthError:
    return AuthError("a message was altered on its way")
