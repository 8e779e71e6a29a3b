"""Where a group beside those in which steps run is joined, by ranks that have met before or not."""

from __future__ import annotations

import socket
from dataclasses import replace

from ferrule.config import FabricSettings
from ferrule.config.values import parse_address
from ferrule.engine.messages import Join
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.secure.token import write_address

LOOPBACK = "127.0.0.1"


def open_listener(settings: FabricSettings, *, beyond: bool) -> tuple[socket.socket, tuple[str, ...]]:
    """A listener of the first rank of a group, and its addresses with a port. ``settings``: by which this rank met its
    own group. ``beyond``: also for ranks of other hosts; the fabric lets none in without the group's key."""
    listener = socket.create_server(("" if beyond else LOOPBACK, 0), backlog=128)
    port = int(listener.getsockname()[1])
    faces = own_interfaces(settings.interfaces) if beyond else ()
    hosts = [face.address for face in faces if face.ip.version == 4] or [LOOPBACK]
    return listener, tuple(write_address((host, port)) for host in hosts)


def settings_to_join(
    settings: FabricSettings, join: Join, rank: int, listener: socket.socket | None, key: str
) -> FabricSettings:
    """For rank number ``rank`` of the group of ``join``, to which ``listener`` goes. ``key``: of the group, in
    hexadecimal digits."""
    return replace(
        settings,
        rank=rank,
        world_size=join.size,
        addresses=tuple(parse_address(each, "the group's address") for each in join.addresses),
        key=bytes.fromhex(key),
        listen_fd=None if listener is None else listener.detach(),
        listen=None,
    )
