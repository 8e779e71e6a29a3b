"""What the hub's client is told, as it calls that."""

from __future__ import annotations

import msgspec

from ferrule.serve.hub.cache import SharedFile, SharedModel


class LargeFile(msgspec.Struct, rename="camel"):
    sha256: str
    size: int
    pointer_size: int = 0


class Sibling(msgspec.Struct, rename="camel", omit_defaults=True):
    """A file of a model."""

    rfilename: str
    size: int
    blob_id: str
    lfs: LargeFile | None = None

    @classmethod
    def of(cls, name: str, file: SharedFile) -> Sibling:
        return cls(name, file.size, file.digest, LargeFile(file.digest, file.size) if file.is_large else None)


class ModelInfo(msgspec.Struct):
    id: str
    sha: str
    siblings: list[Sibling]

    @classmethod
    def of(cls, model: SharedModel) -> ModelInfo:
        return cls(model.hub_id, model.revision, [Sibling.of(name, file) for name, file in model.files().items()])


class TreeEntry(msgspec.Struct, tag_field="type", tag="file"):
    path: str
    size: int
    oid: str


class HubError(msgspec.Struct):
    error: str
