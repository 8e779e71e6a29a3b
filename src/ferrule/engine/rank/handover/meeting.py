"""Where a group beside those in which steps run is joined, by ranks that have met before or not."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import replace

from ferrule.config import FabricSettings
from ferrule.config.values import parse_address
from ferrule.engine.messages import Join
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.secure.token import write_address

LOOPBACK = "127.0.0.1"


def open_listener(settings: FabricSettings, *, everywhere: bool = False) -> tuple[socket.socket, tuple[str, ...]]:
    """A listener of the first rank of a group, and its addresses with a port. ``settings``: by which this rank met its
    own group; where that is of one host, others reach it only with ``everywhere``."""
    here = not everywhere and all(_is_loopback(host) for host, _ in settings.addresses)
    listener = socket.create_server((LOOPBACK if here else "", 0), backlog=128)
    port = int(listener.getsockname()[1])
    faces = () if here else own_interfaces(settings.interfaces)
    hosts = [face.address for face in faces if face.ip.version == 4] or [LOOPBACK]
    return listener, tuple(write_address((host, port)) for host in hosts)


def settings_to_join(settings: FabricSettings, join: Join, rank: int, listener: socket.socket | None) -> FabricSettings:
    """For rank number ``rank`` of the group of ``join``, to which ``listener`` goes."""
    return replace(
        settings,
        rank=rank,
        world_size=join.size,
        addresses=tuple(parse_address(each, "the group's address") for each in join.addresses),
        key=bytes.fromhex(join.key),
        listen_fd=None if listener is None else listener.detach(),
        listen=None,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
