"""The small files of a model on a hub: its configuration, its index, and the headers of its weights. No weights.

Fetched by httpx, which the base install has, and not by huggingface_hub, which comes with the extra ``engine`` and
brings a native library for transfers: the planner works without extras and needs two small files and one range request.
Whole models are downloaded by huggingface_hub (`ferrule.engine.source`), and found here where that puts them.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.errors import ModelError
from ferrule.files import cache_directory, write_whole
from ferrule.model.headers import MAX_JSON, SINGLE, header_length

if TYPE_CHECKING:
    import httpx

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_REVISION = re.compile(r"[0-9a-f]{40}")
CONFIG_BYTES = 4 << 20
SECONDS = 30.0
"""Time limit for one file in all."""
FRESH = 24 * 3600.0
"""Seconds for which a file that was fetched is taken without asking again."""


@dataclass(frozen=True)
class Hub:
    """Source of models on a hub: ``endpoint``, ``token``, ``offline`` (``HF_ENDPOINT``, ``HF_TOKEN``,
    ``HF_HUB_OFFLINE``).

    ``cache``: where its small files are kept; None: with Ferrule's other caches. ``downloads``: where the hub's own
    tools keep whole models (``HF_HUB_CACHE``, ``HF_HOME``); None: they are not looked at.
    """

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    offline: bool = False
    seconds: float = SECONDS
    cache: Path | None = None
    downloads: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Hub:
        home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        downloads = Path(environment.get("HF_HUB_CACHE") or Path(home, "hub"))
        return cls(
            endpoint=(environment.get("HF_ENDPOINT") or cls.endpoint).rstrip("/"),
            token=environment.get("HF_TOKEN") or None,
            offline=environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
            downloads=downloads.expanduser(),
        )

    def downloaded(self, hub_id: str) -> Path | None:
        """The directory of model ``hub_id`` where the hub's own tools have downloaded it, or None."""
        if self.downloads is None:
            return None
        place = self.downloads / f"models--{hub_id.replace('/', '--')}"
        try:
            revision = (place / "refs" / "main").read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        directory = place / "snapshots" / revision
        return directory if _REVISION.fullmatch(revision) and (directory / "config.json").exists() else None

    def file(self, hub_id: str, name: str, most: int = MAX_JSON) -> bytes | None:
        """The file ``name`` of model ``hub_id``, or None where the model has none of that name.

        What was fetched in the last day comes from the cache, and older still where the hub cannot be reached. Raises
        `ModelError` where there is neither, saying what to do.
        """
        return self._cached(hub_id, name, lambda client: self._whole(client, hub_id, name, most))

    def safetensors_header(self, hub_id: str) -> bytes | None:
        """The JSON header of the only safetensors file, by two range requests; None where there is none."""
        return self._cached(hub_id, f"{SINGLE}.header", lambda client: self._header(client, hub_id))

    def _cached(self, hub_id: str, name: str, fetch: Callable[[httpx.Client], bytes | None]) -> bytes | None:
        place = self._place(hub_id) / name
        age = _age(place)
        if age is None or (age > FRESH and not self.offline):
            try:
                found = self._fetch(hub_id, fetch)
            except ModelError:
                if age is None:
                    raise
            else:
                _keep(place, found or b"")
                return found
        return place.read_bytes() or None

    def _place(self, hub_id: str) -> Path:
        host = re.sub(r"[^\w.-]", "_", self.endpoint.partition("://")[2])
        root = self.cache or cache_directory() / "models"
        return root / host / hub_id.replace("/", "--")

    def _fetch(self, hub_id: str, fetch: Callable[[httpx.Client], bytes | None]) -> bytes | None:
        import httpx

        if self.offline:
            raise ModelError(f"{hub_id} was never looked up and HF_HUB_OFFLINE is set; {_CURE}")
        headers = {"User-Agent": "ferrule"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        try:
            with httpx.Client(headers=headers, follow_redirects=True, max_redirects=5, timeout=self.seconds) as client:
                return fetch(client)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelError(
                f"{hub_id}: {self.endpoint} cannot be reached ({error or type(error).__name__}); {_CURE}"
            ) from None

    def _url(self, hub_id: str, name: str) -> str:
        return f"{self.endpoint}/{hub_id}/resolve/main/{name}"

    def _whole(self, client: httpx.Client, hub_id: str, name: str, most: int) -> bytes | None:
        return self._read(client, hub_id, name, most, None)

    def _header(self, client: httpx.Client, hub_id: str) -> bytes | None:
        start = self._read(client, hub_id, SINGLE, 8, (0, 8))
        if start is None:
            return None
        length = header_length(start, f"{hub_id}: {SINGLE}")
        return self._read(client, hub_id, SINGLE, length, (8, 8 + length))

    def _read(
        self, client: httpx.Client, hub_id: str, name: str, most: int, part: tuple[int, int] | None
    ) -> bytes | None:
        """At most ``most`` bytes of the file; of bytes ``part`` of it where that is given."""
        headers = {"Range": f"bytes={part[0]}-{part[1] - 1}"} if part else {}
        deadline = time.monotonic() + self.seconds
        what = f"{hub_id}: {name}"
        with client.stream("GET", self._url(hub_id, name), headers=headers) as answer:
            if answer.status_code == 404:
                return None
            if answer.status_code in (401, 403):
                raise ModelError(
                    f"{hub_id}: {self.endpoint} knows no such model, or it is private or gated: accept its license "
                    "there and set HF_TOKEN"
                )
            if answer.status_code >= 400:
                raise ModelError(f"{what}: {self.endpoint} answered {answer.status_code}; {_CURE}")
            skip = part[0] if part and answer.status_code != 206 else 0  # a server that knows no ranges sends all
            found = bytearray()
            for piece in answer.iter_bytes():
                found += piece
                if part and len(found) >= skip + most:
                    break
                if len(found) > skip + most:
                    raise ModelError(f"{what} has more than the {most:,} bytes that such a file needs")
                if time.monotonic() > deadline:
                    raise ModelError(f"{what} did not arrive within {self.seconds:g} s; {_CURE}")
        if part and len(found) < skip + most:
            raise ModelError(f"{what} has only {len(found):,} bytes; it is no safetensors file")
        return bytes(found[skip : skip + most])


_CURE = "try again, or download its config.json and model.safetensors.index.json elsewhere and give their directory"


def _age(place: Path) -> float | None:
    try:
        return max(0.0, time.time() - place.stat().st_mtime)
    except OSError:
        return None


def _keep(place: Path, data: bytes) -> None:
    """Without a cache everything works, only slower: so what cannot be written is not."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, data.decode())
