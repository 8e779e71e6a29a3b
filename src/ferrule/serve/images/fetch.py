"""Fetching of images by https, for clients that name a URL: bounded, and from the public internet only."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from ipaddress import ip_address
from typing import Final
from urllib.parse import urljoin

import httpx

from ferrule.errors import RequestError
from ferrule.serve.images.addresses import Address, is_of_others
from ferrule.serve.images.shown import MOST_BYTES, ShownImage, refused
from ferrule.units import format_bytes

SECONDS: Final = 20.0
"""In which an image is to be here, redirects included."""
REDIRECTS: Final = 3
REQUESTS: Final = 8
"""That have fetched images in memory, or fetch them, at once; others wait."""
SHOWN: Final = 120
"""Characters of a URL in an error."""
_HEADERS: Final = {"User-Agent": "ferrule", "Accept": "image/*", "Accept-Encoding": "identity"}
_MOVED: Final = (301, 302, 303, 307, 308)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def addresses_of(host: str, port: int) -> list[str]:
    """Addresses of ``host``, by this machine's resolver. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Fetcher:
    """Fetches images. A name is resolved once for each request that is sent, all of its addresses must be ``allowed``,
    and the connection goes to the first of them: it cannot be pointed elsewhere in between (DNS rebinding). Redirects
    are checked as the first URL is. Proxies of the environment are not used: they would resolve names themselves.

    ``places``: for requests that fetch. The others are for tests: ``resolve`` as `addresses_of`, ``context`` for TLS.
    """

    def __init__(
        self,
        *,
        resolve: Resolve = addresses_of,
        allowed: Callable[[Address], bool] = is_of_others,
        context: ssl.SSLContext | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self._resolve, self._allowed, self._seconds = resolve, allowed, seconds
        self._given = context
        self.places = asyncio.Semaphore(REQUESTS)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return self._given or httpx.create_ssl_context()

    async def fetch(self, shown: ShownImage) -> bytes:
        """The file of ``shown``, checked. Raises `RequestError` where it cannot be had."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(shown)
        except TimeoutError:
            raise refused(shown, f"it was not here within {self._seconds:g} s, from {_told(shown.url)}") from None

    async def _follow(self, shown: ShownImage) -> bytes:
        url = shown.url
        transport = httpx.AsyncHTTPTransport(
            verify=self._context, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        async with transport:
            for _ in range(REDIRECTS + 1):
                request = await self._request(shown, url)
                try:
                    # Not by a client, which would log the URL as a whole.
                    response = await transport.handle_async_request(request)
                    try:
                        if response.status_code in _MOVED and "location" in response.headers:
                            url = urljoin(url, response.headers["location"])
                            continue
                        return await _read(shown, url, response)
                    finally:
                        await response.aclose()
                except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError) as error:
                    why = str(error).partition("\n")[0] or type(error).__name__
                    raise refused(shown, f"{_told(url)} does not give it: {why}") from None
        raise refused(shown, f"{_told(shown.url)} leads to more than {REDIRECTS} further URLs")

    async def _request(self, shown: ShownImage, url: str) -> httpx.Request:
        """Request for ``url`` to the address that was checked. Raises `RequestError` where none may be asked."""
        try:
            parsed = httpx.URL(url)
            host, port = parsed.raw_host.decode(), parsed.port or 443
        except (httpx.InvalidURL, ValueError):
            raise refused(shown, f"{_told(url)} is no URL") from None
        if parsed.scheme != "https" or not host or parsed.userinfo:
            raise refused(shown, f"only https:// without a user's name is fetched, not {_told(url)}")
        try:
            found = [ip_address(each.partition("%")[0]) for each in await self._resolve(host, port)]
        except (OSError, UnicodeError):
            found = []
        if not found or not all(map(self._allowed, found)):  # which of the two, strangers need not know
            raise refused(shown, f"there is no {host[:SHOWN]!r} in the public internet; send the image as a data URL")
        return httpx.Request(
            "GET",
            parsed.copy_with(host=str(found[0]), fragment=None),
            headers={"Host": parsed.netloc.decode(), **_HEADERS},
            extensions={"sni_hostname": host},
        )


async def _read(shown: ShownImage, url: str, response: httpx.Response) -> bytes:
    if response.status_code != 200:
        raise refused(shown, f"{_told(url)} answered with status {response.status_code}")
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > MOST_BYTES:
            raise refused(shown, f"{_told(url)} gives more than {format_bytes(MOST_BYTES)}")
    return bytes(data)


def _told(url: str) -> str:
    """``url`` as errors may repeat it: without its query and a user's name, in which secrets are."""
    plain = url.partition("#")[0].partition("?")[0]
    scheme, mark, rest = plain.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"[:SHOWN]


def disabled(shown: ShownImage) -> RequestError:
    return RequestError(
        f"{shown.where}: images are not fetched here; send it as a data URL (data:image/png;base64,…), or start the "
        "server with --image-urls",
        param=shown.where,
        code="unsupported",
    )
