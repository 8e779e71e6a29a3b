"""Download of a whole model from a hub into the hub's own cache.

Large files are taken up where an earlier attempt was cut short and compared with the digest that the hub tells, which
the hub's own client does not do; their transfers, the rest and the cache's layout are its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ferrule.errors import ModelError, first_line
from ferrule.model import Hub
from ferrule.units import format_bytes

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""File patterns of what a model needs to run; hubs often hold the same weights in other formats beside them."""
SPARE_BYTES = 256 * 2**20
"""Bytes of the disk that are left free."""


def download(hub_id: str, on_progress: Callable[[int, int], None]) -> Path:
    """Directory of a model (or an adapter) of the hub: what of it is not here is downloaded, if the disk has room.

    ``on_progress`` is told the bytes that are here, and all. Where the hub cannot be asked, what was downloaded before
    will do. Raises `ModelError`."""
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # there are bars of our own
    hub = Hub.from_environment()
    try:
        release = find_release(hub, hub_id)
    except ModelError as error:
        known = _known(hub, hub_id)
        if known is None:
            raise ModelError(f"{hub_id}: no such directory here, and not on the hub: {error}") from None
        return known
    ready = directory_of(hub, hub_id) / "snapshots" / release.revision
    named = directory_of(hub, hub_id) / "refs" / "main"
    whole = all((ready / file.name).exists() for file in release.files)
    if whole and named.exists() and named.read_text().strip() == release.revision:
        return ready
    check_room(hub, release)
    total, before = sum(file.size for file in release.files), 0
    for file in release.files:
        if not _is_here(hub, release, file):
            have = 0

            def more(count: int, before: int = before) -> None:
                nonlocal have
                have += count
                on_progress(before + have, total)

            fetch(hub, release, file, more, wait=True)
        before += file.size
    return complete(hub, release)


def _known(hub: Hub, hub_id: str) -> Path | None:
    """What was downloaded of it before, by whatever program."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        place = snapshot_download(hub_id, allow_patterns=HUB_FILES, cache_dir=_cache(hub), local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return Path(place)


class DownloadStopped(Exception):
    """Whoever asked for the download has left. What is here is kept for the next time."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a model on a hub. ``digest``: ``sha256:…`` of a large one; of others as git has them, ``sha1:…``."""

    name: str
    size: int
    digest: str

    @property
    def sha256(self) -> str | None:
        kind, _, value = self.digest.partition(":")
        return value if kind == "sha256" else None


@dataclass(frozen=True)
class Release:
    """The files of a model on a hub that are needed to run it, as of commit ``revision``."""

    hub_id: str
    revision: str
    files: tuple[RemoteFile, ...]


def find_release(hub: Hub, hub_id: str) -> Release:
    """What is to be downloaded. Raises `ModelError` where the hub has no such model, or none that is run here."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    if hub.offline:
        raise ModelError(f"{hub_id} cannot be looked up, since HF_HUB_OFFLINE is set")
    with _told(hub_id, hub):
        found = HfApi(endpoint=hub.endpoint, token=hub.token).model_info(hub_id, files_metadata=True)
    siblings = {each.rfilename: each for each in found.siblings or ()}
    files = tuple(_remote(siblings[name]) for name in filter_repo_objects(siblings, allow_patterns=HUB_FILES))
    names = {file.name for file in files}
    configured = not names.isdisjoint(("config.json", "adapter_config.json"))
    if not configured or not any(name.endswith(".safetensors") for name in names):
        raise ModelError(
            f"{hub_id} holds no config.json with safetensors; a GGUF file is downloaded by itself, and served by its "
            "path"
        )
    return Release(hub_id, str(found.sha), files)


def _remote(sibling: Any) -> RemoteFile:
    if sibling.lfs is not None:
        return RemoteFile(sibling.rfilename, int(sibling.lfs.size), f"sha256:{sibling.lfs.sha256}")
    return RemoteFile(sibling.rfilename, int(sibling.size or 0), f"sha1:{sibling.blob_id}")


def check_room(hub: Hub, release: Release) -> None:
    """Raise `ModelError` where the disk has no room for what is missing of ``release``."""
    place = _cache(hub)
    needed = sum(_missing(hub, release, file) for file in release.files)
    existing = next(each for each in (place, *place.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if needed and needed + SPARE_BYTES > free:
        raise ModelError(
            f"{release.hub_id} needs {format_bytes(needed)} more in {place}, but its disk has {format_bytes(free)} "
            "free; free some, or set HF_HUB_CACHE to a directory of another disk"
        )


def _is_here(hub: Hub, release: Release, file: RemoteFile) -> bool:
    snapshot = directory_of(hub, release.hub_id) / "snapshots" / release.revision
    return _blob(hub, release, file).exists() or (snapshot / file.name).exists()


def _blob(hub: Hub, release: Release, file: RemoteFile) -> Path:
    return directory_of(hub, release.hub_id) / "blobs" / file.digest.partition(":")[2]


def _missing(hub: Hub, release: Release, file: RemoteFile) -> int:
    if _is_here(hub, release, file):
        return 0
    part = _part(_blob(hub, release, file))
    return max(0, file.size - (part.stat().st_size if part.exists() else 0))


def fetch(hub: Hub, release: Release, file: RemoteFile, on_bytes: Callable[[int], None], *, wait: bool = False) -> None:
    """Download one file, unless it is here. ``on_bytes`` is told how many more bytes of it are here, those of earlier
    attempts first; what it raises ends the download. ``wait``: for another program that downloads it. Raises
    `ModelError` where the file cannot be had, or is damaged."""
    from huggingface_hub import constants, hf_hub_download

    with _told(release.hub_id, hub):
        # The hub's plain transfers end here; its own client knows another way for such files.
        if file.sha256 is not None and file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            while not _fetch_large(hub, release, file, file.sha256, on_bytes, wait=wait):
                pass
        hf_hub_download(
            release.hub_id,
            file.name,
            revision=release.revision,
            cache_dir=_cache(hub),
            endpoint=hub.endpoint,
            token=hub.token,
        )


def _fetch_large(
    hub: Hub, release: Release, file: RemoteFile, sha256: str, on_bytes: Callable[[int], None], *, wait: bool
) -> bool:
    """Put the file where the hub's client looks for it before it downloads. False: another program has meanwhile ended
    its own attempt, so that it is to be looked anew."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    blob = _blob(hub, release, file)
    if blob.exists():
        return True
    blob.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(release.hub_id, file.name, revision=release.revision, endpoint=hub.endpoint)
    part = _part(blob)
    with part.open("a+b") as out:
        _lock(out, file.name, wait=wait)
        if blob.exists() or not os.fstat(out.fileno()).st_nlink:
            return False
        have = out.seek(0, os.SEEK_END)
        if have > file.size:
            have = out.truncate(0)
        on_bytes(have)
        headers = build_hf_headers(token=hub.token)
        http_get(url, out, resume_size=have, headers=headers, expected_size=file.size, tqdm_class=_counter(on_bytes))
        out.seek(0)
        if hashlib.file_digest(out, "sha256").hexdigest() != sha256:
            part.unlink()
            raise ModelError(f"{release.hub_id}: {file.name} arrived damaged; try again")
        part.rename(blob)
    return True


def _lock(out: IO[bytes], name: str, *, wait: bool) -> None:
    try:
        fcntl.flock(out, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ModelError(f"{name} is being downloaded already; wait for that") from None


def _counter(on_bytes: Callable[[int], None]) -> Any:
    """What the hub's client takes for a bar of progress."""

    class Counter:
        def __init__(self, **_: Any) -> None:
            pass

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: int) -> None:
            on_bytes(count)

    return Counter


def complete(hub: Hub, release: Release) -> Path:
    """The directory of ``release``, all files of which are here; from now on it is what the model's name means."""
    from huggingface_hub import snapshot_download

    with _told(release.hub_id, hub):
        place = snapshot_download(
            release.hub_id, allow_patterns=HUB_FILES, cache_dir=_cache(hub), endpoint=hub.endpoint, token=hub.token
        )
    return Path(place)


def directory_of(hub: Hub, hub_id: str) -> Path:
    """The directory in the hub's cache that has all of a model."""
    return _cache(hub) / f"models--{hub_id.replace('/', '--')}"


def remove(hub: Hub, hub_id: str) -> bool:
    """Remove all of a model from the hub's cache. False: there is none. Raises `ModelError` where it cannot be."""
    directory = directory_of(hub, hub_id)
    if not directory.is_dir():
        return False
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise ModelError(f"{directory} cannot be removed: {error}") from None
    return True


def _cache(hub: Hub) -> Path:
    if hub.downloads is None:
        raise ModelError("there is no directory for models of the hub; set HF_HUB_CACHE")
    return hub.downloads


def _part(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.part")


@contextmanager
def _told(hub_id: str, hub: Hub) -> Iterator[None]:
    """The hub client's errors as `ModelError`."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        yield
    except (ModelError, DownloadStopped):
        raise
    except GatedRepoError:
        raise ModelError(f"{hub_id} is gated: accept its license at {hub.endpoint}/{hub_id} and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"{hub.endpoint} knows no model {hub_id} (or it is private, and HF_TOKEN is not set)"
        ) from None
    except Exception as error:  # noqa: BLE001 - the client raises what its library of HTTP does
        raise ModelError(
            f"{hub_id} cannot be downloaded from {hub.endpoint}: {first_line(error) or type(error).__name__}; what is "
            "here is kept: try again"
        ) from None
