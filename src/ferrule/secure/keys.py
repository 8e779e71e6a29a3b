"""The cluster's key, and what follows from it: its public name, and keys for single purposes."""

from __future__ import annotations

import hashlib
import hmac

KEY_BYTES = 32


def fingerprint(key: bytes) -> str:
    """A cluster's public name: 16 hexadecimal letters that follow from its key and tell nothing of it."""
    return hmac.new(key, b"ferrule cluster fingerprint", hashlib.sha256).hexdigest()[:16]


def derived_key(key: bytes, purpose: str) -> str:
    """A key for one purpose, in hexadecimal, which every member makes for itself: it never crosses the wire."""
    return hmac.new(key, b"ferrule derived\0" + purpose.encode(), hashlib.sha256).hexdigest()
