"""Listening sockets of a rank, for the other ranks."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ferrule.config import FabricSettings
from ferrule.errors import ConfigError, RendezvousError
from ferrule.fabric.join.addresses import Interface
from ferrule.secure.token import write_address

_BACKLOG = 128
_ANY = ("0.0.0.0", "::")


def first_listeners(settings: FabricSettings) -> list[socket.socket]:
    """The sockets on which a rank listens before it met others: rank 0's, and any that FERRULE_LISTEN asks for."""
    if settings.listen_fd is not None:
        try:
            return [socket.socket(fileno=settings.listen_fd)]
        except OSError as error:
            raise ConfigError(
                f"FERRULE_LISTEN_FD={settings.listen_fd} is no socket ({error.strerror}); "
                "the launcher must pass the descriptor on"
            ) from error
    if settings.listen is not None:
        return _listen("FERRULE_LISTEN", [settings.listen], settings.rank)
    return _listen("FERRULE_ADDRESS", settings.addresses, settings.rank) if settings.rank == 0 else []


def _listen(variable: str, addresses: Sequence[tuple[str, int]], rank: int) -> list[socket.socket]:
    made = []
    for host, port in addresses:
        try:
            if host:
                made.append(listen_on(host, port))
            else:
                made.append(listen_on("0.0.0.0", port))
                if socket.has_ipv6:
                    made.append(listen_on("::", made[-1].getsockname()[1]))
        except OSError as error:
            if not made:
                where = write_address((host, port))
                raise RendezvousError(
                    f"rank {rank} cannot listen on {where} ({variable}): {error.strerror or error}"
                ) from error
    return made


def listen_on(host: str, port: int, interface: str = "") -> socket.socket:
    """A listening socket. ``interface`` is needed for link-local addresses of IPv6."""
    family, address = resolve(host, port, interface)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def resolve(host: str, port: int, interface: str = "") -> list[tuple[socket.AddressFamily, Any]]:
    """Socket addresses to connect or bind to. ``interface``: without it a link-local address of IPv6 means nothing."""
    if interface and host.startswith("fe80:"):
        host = f"{host}%{interface}"
    # As bytes a name in plain letters needs no codec for the others, which takes longer to load than all else here.
    name = host.encode() if host.isascii() else host
    return [(found[0], found[4]) for found in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]


def is_loopback(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def listen_everywhere(
    faces: Sequence[Interface], already: Sequence[socket.socket]
) -> tuple[tuple[Interface, ...], list[socket.socket]]:
    """The interfaces with the ports on which this rank listens there, and the sockets that this took.

    Sockets that listen ``already`` serve their addresses. An address that cannot be listened on is left out.
    """
    ports = {str(sock.getsockname()[0]).partition("%")[0]: int(sock.getsockname()[1]) for sock in already}
    wanted = next(iter(ports.values()), 0)
    made: list[socket.socket] = []
    served = []
    for face in faces:
        port = ports.get(face.address) or ports.get(_ANY[0] if face.ip.version == 4 else _ANY[1])
        for attempt in (wanted, 0):
            if port:
                break
            try:
                made.append(listen_on(face.address, attempt, face.name))
                port = int(made[-1].getsockname()[1])
            except OSError:  # the port is taken there, or the address has just gone
                continue
        if port:
            served.append(replace(face, port=port))
    return tuple(served), made
