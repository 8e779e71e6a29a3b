"""Keyring of a server: who sends a request, by the key that it carries."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

from ferrule.errors import ConfigError
from ferrule.files import file_stamp
from ferrule.serve.http.errors import ApiError
from ferrule.serve.keys.limits import Limiter, Limits
from ferrule.serve.keys.record import ONE_KEY, ApiKey, KeysFile, digest_of, read_keys

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Sender of a request. ``name``: of its key, None where none is needed; another key may have it later.
    ``models``: names of those that it may use; None: all. ``identity``: of the key itself, its hash. ``priority``: the
    first that its requests may have; None: any."""

    name: str | None = None
    models: tuple[str, ...] | None = None
    limiter: Limiter | None = None
    identity: str = ""
    priority: int | None = None


class Keyring:
    """Keys of one server: ``api_key``, without limits, and those of ``file``, read again when it changes.

    A server that has needed keys goes on to need them when the file is emptied, damaged or gone. Raises `ConfigError`
    for an empty key, and for a file that cannot be used at the start. ``wall``: seconds since 1970.
    """

    def __init__(
        self, api_key: str | None = None, file: Path | None = None, *, wall: Callable[[], float] = time.time
    ) -> None:
        if api_key is not None and not api_key.strip():
            raise ConfigError("the API key is empty; give one with --api-key or FERRULE_API_KEY, or none at all")
        self._one = None if api_key is None else digest_of(api_key.encode())
        self._file, self._wall = file, wall
        self._stamp = None if file is None else file_stamp(file)
        found = None if file is None else read_keys(file)
        self._keyed = self._one is not None or found is not None
        self._keys: tuple[ApiKey, ...] = ()
        self._callers: dict[str, Caller] = {}
        self._take(found)

    @property
    def keyed(self) -> bool:
        """Whether requests need a key."""
        self._look()
        return self._keyed

    def caller(self, headers: Headers) -> Caller:
        """Raises `ApiError` 401 without a key that is valid now."""
        self._look()
        if not self._keyed:
            return Caller()
        digest = digest_of(given_key(headers))
        found: ApiKey | None = None
        for each in self._keys:  # all of them, so that the time tells nothing
            if hmac.compare_digest(each.digest, digest):
                found = each
        if self._one is not None and hmac.compare_digest(self._one, digest):
            return Caller(ONE_KEY, identity=digest)
        if found is None:
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        if found.expires is not None and self._wall() >= found.expires:
            raise ApiError(401, f"the API key {found.name!r} has expired; ask for another", code="expired_api_key")
        return self._callers[found.digest]

    def _look(self) -> None:
        if self._file is None or (stamp := file_stamp(self._file)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._take(read_keys(self._file))
        except ConfigError as error:
            log.warning("the former API keys stay valid: %s", error)

    def _take(self, file: KeysFile | None) -> None:
        self._keyed = self._keyed or file is not None
        self._keys = () if file is None else file.keys
        now, before = time.monotonic(), self._callers
        self._callers = {}
        for each in self._keys:
            limits = Limits(each.requests_per_minute, each.tokens_per_minute, each.concurrent)
            old = before.get(each.digest)
            kept = old.limiter if old is not None and old.limiter is not None and old.limiter.limits == limits else None
            self._callers[each.digest] = Caller(
                each.name, each.models, kept or Limiter(limits, now), each.digest, each.priority
            )


def given_key(headers: Headers) -> bytes:
    """Key in ``headers``, as OpenAI's clients send it (``Authorization: Bearer``) or Anthropic's (``x-api-key``)."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    return given.strip().encode("latin-1")  # header values arrive decoded so
