"""Hosts of a cluster find each other by multicast DNS, on every interface and cable, where zeroconf is installed.

What is told is no secret: the cluster's name and fingerprint, the host's id, name, addresses and port. What is heard is
only a place to try: what answers there has to prove that it knows the cluster's key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ferrule.cluster.records import Member
from ferrule.secure import Address
from ferrule.secure.handshake import harmless

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceInfo

log = logging.getLogger(__name__)

SERVICE = "_ferrule._tcp.local."
_ASK_MILLISECONDS = 1500
_MAX_TEXT = 64


@dataclass(frozen=True)
class Heard:
    """An agent that says it is there."""

    cluster: str
    fingerprint: str
    host: str
    name: str
    addresses: tuple[Address, ...]


def installed() -> bool:
    try:
        import zeroconf  # noqa: F401
    except ImportError:
        return False
    return True


class Discovery:
    """Tells of this host, and listens for others: ``on_heard`` is called for each, also again when it changes,
    ``on_gone`` with the id of a host that says good-bye.

    An interface without multicast, or a firewall, makes it deaf, which is no error: see `ferrule doctor`. It knows the
    interfaces that are there when it starts: make a new one when they change.
    """

    def __init__(
        self,
        cluster: str,
        fingerprint: str,
        on_heard: Callable[[Heard], None],
        on_gone: Callable[[str], None] = lambda host: None,
    ) -> None:
        self._cluster = {"cluster": cluster, "id": fingerprint}
        self._on_heard, self._on_gone = on_heard, on_gone
        self._zeroconf: Any = None
        self._browser: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, member: Member | None) -> None:
        """``member``: this host; None to listen only. Raises `OSError` where there is no multicast at all."""
        from zeroconf import InterfaceChoice, IPVersion
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        try:
            self._zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All, ip_version=IPVersion.All)
        except OSError:  # a kernel without IPv6
            self._zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All, ip_version=IPVersion.V4Only)
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._changed])
        if member is not None:
            await self._zeroconf.async_register_service(self._described(member), allow_name_change=True)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._zeroconf is not None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._browser.async_cancel()
                    await self._zeroconf.async_close()

    def _described(self, member: Member) -> AsyncServiceInfo:
        from zeroconf.asyncio import AsyncServiceInfo

        return AsyncServiceInfo(
            SERVICE,
            f"{member.host}.{SERVICE}",
            port=member.port,
            addresses=[ip_address(address).packed for address in member.addresses],
            properties=self._cluster | {"host": member.host, "name": member.name},
            server=f"ferrule-{member.host}.local.",
        )

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        from zeroconf import ServiceStateChange

        if state_change is ServiceStateChange.Removed:
            self._on_gone(name.removesuffix(f".{SERVICE}"))  # of members the silence is noticed by other means, too
            return
        task = asyncio.ensure_future(self._look_up(zeroconf, service_type, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(service_type, name)
        if not await info.async_request(zeroconf, _ASK_MILLISECONDS) or info.port is None:
            return
        told = {
            key.decode(errors="replace"): harmless((value or b"")[:_MAX_TEXT]) for key, value in info.properties.items()
        }
        addresses = tuple(
            (address, info.port) for address in info.parsed_scoped_addresses() if not ip_address(address).is_loopback
        )
        if addresses and {"cluster", "id", "host", "name"} <= told.keys():
            self._on_heard(Heard(told["cluster"], told["id"], told["host"], told["name"], addresses))
