"""Staging: copies of device tensors to and from pinned host memory, ordered by events, for collectives of them."""

from ferrule.staging.copier import ACCELERATORS, Copier, Event, TorchCopier, accelerators, copier_of, offer_copier
from ferrule.staging.direct import DirectMessages, DirectTensor
from ferrule.staging.pieces import PIECE_BYTES, Piece, spans, staged
from ferrule.staging.uploads import UPLOAD_BYTES, Uploads
from ferrule.staging.visible import is_integrated

__all__ = [
    "ACCELERATORS",
    "PIECE_BYTES",
    "UPLOAD_BYTES",
    "Copier",
    "DirectMessages",
    "DirectTensor",
    "Event",
    "Piece",
    "TorchCopier",
    "Uploads",
    "accelerators",
    "copier_of",
    "is_integrated",
    "offer_copier",
    "spans",
    "staged",
]
