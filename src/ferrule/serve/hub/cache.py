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
    """A model whose files lie in ``snapshot``, as of commit ``revision``."""

    hub_id: str
    snapshot: Path

    @property
    def revision(self) -> str:
        return self.snapshot.name

    def file(self, name: str) -> SharedFile | None:
        """The file of that name: a link to one that the hub's tools keep, and to no other."""
        if "\0" in name or ".." in name.split("/"):
            return None
        blob = (self.snapshot / name).resolve()
        if blob.parent != (self.snapshot.parent.parent / "blobs").resolve() or not _DIGEST.fullmatch(blob.name):
            return None
        return SharedFile(blob, blob.stat().st_size, blob.name) if blob.is_file() else None

    def files(self) -> dict[str, SharedFile]:
        """All of them, by their names in the model."""
        names = [path.relative_to(self.snapshot).as_posix() for path in sorted(self.snapshot.rglob("*"))]
        return {name: file for name in names if (file := self.file(name)) is not None}


def shared_model(hub: Hub, hub_id: str) -> SharedModel | None:
    """The model ``hub_id`` as far as it has been downloaded; None where it has not."""
    snapshot = hub.downloaded(hub_id) if HUB_ID.fullmatch(hub_id) else None
    return None if snapshot is None else SharedModel(hub_id, snapshot)
