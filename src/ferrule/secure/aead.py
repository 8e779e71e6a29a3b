"""Authenticated encryption of one direction of a connection, message by message: AES-256-GCM of `cryptography`."""

from __future__ import annotations

import hmac

TAG_BYTES = 16
_NONCE_BYTES = 12


class Sealer:
    """Seals messages in their order, or opens them in the same one. ``key``: of this connection alone, 32 bytes.

    ``purpose``: of this direction; each has a key of its own, so that no nonce (the message's number) comes twice. A
    message that was altered, repeated, dropped, or sent back opens as nothing.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 20 ms, of which a job of one needs none

        self._cipher = AESGCM(hmac.digest(key, b"ferrule seal\0" + purpose.encode(), "sha256"))
        self._number = 0

    def seal(self, message: bytes, head: bytes) -> bytes:
        """The message encrypted, `TAG_BYTES` longer. ``head``: what goes before it in the clear, under the same tag."""
        return self._cipher.encrypt(self._nonce(), message, head)

    def open(self, sealed: bytes, head: bytes) -> bytes | None:
        """The message; None where it is not the next one of the other end. Nothing opens after that."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(self._nonce(), sealed, head)
        except InvalidTag:
            return None

    def _nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(_NONCE_BYTES, "little")
