"""Models in the hub's cache of this host, as a hub tells of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ferrule.model import Hub
from ferrule.model.hub import HUB_ID

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class SharedFile:
    """``digest``: SHA-256 of a large file, of others git's; by it the hub's tools name ``path``."""

    path: Path
    size: int
    digest: str

    @property
    def is_large(self) -> bool:
        return len(self.digest) == 64


@dataclass(frozen=True)
class SharedModel:
    """Files of commit ``revision``, by their names in the model."""

    hub_id: str
    revision: str
    files: dict[str, SharedFile]


def shared_model(hub: Hub, hub_id: str) -> SharedModel | None:
    """The model ``hub_id`` as far as it has been downloaded; None where it has not."""
    snapshot = hub.downloaded(hub_id) if HUB_ID.fullmatch(hub_id) else None
    if snapshot is None:
        return None
    blobs = (snapshot.parent.parent / "blobs").resolve()
    files = {}
    for path in sorted(snapshot.rglob("*")):
        blob = path.resolve()
        if blob.parent == blobs and _DIGEST.fullmatch(blob.name) and blob.is_file():
            files[path.relative_to(snapshot).as_posix()] = SharedFile(blob, blob.stat().st_size, blob.name)
    return SharedModel(hub_id, snapshot.name, files)
