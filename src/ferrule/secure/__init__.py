"""Keys, tokens, one handshake, and encryption by TLS (`ferrule.secure.tls`): what makes a connection trustworthy."""

from ferrule.secure.handshake import Status, Stranger
from ferrule.secure.token import (
    KEY_BYTES,
    Address,
    JoinToken,
    check_cluster_name,
    derived_key,
    fingerprint,
    write_address,
)

__all__ = [
    "KEY_BYTES",
    "Address",
    "JoinToken",
    "Status",
    "Stranger",
    "check_cluster_name",
    "derived_key",
    "fingerprint",
    "write_address",
]
