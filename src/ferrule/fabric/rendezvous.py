"""How the ranks of a job find each other: everybody reports to rank 0, which tells all about all."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Mapping

from ferrule.config import FabricSettings
from ferrule.errors import ConfigError, FerruleError, RendezvousError
from ferrule.fabric.acceptor import Acceptor
from ferrule.fabric.handshake import Identity, Role
from ferrule.fabric.hosts import RankHost, this_host
from ferrule.fabric.link import Deadline, Link, connect
from ferrule.fabric.mesh import Joined, join


def rendezvous(settings: FabricSettings, deadline: Deadline) -> tuple[Joined, list[RankHost]]:
    """Meet the other ranks of the job that ``settings`` describe, and join them.

    Raises `RendezvousError` (who is missing, who came twice, whose version differs) and `AuthError`.
    """
    if settings.world_size == 1:
        hosts = [this_host(settings.transport)]
        return join(0, hosts, secrets.token_bytes(16), b"", None, deadline, spin_us=settings.spin_us), hosts
    if settings.rank == 0:
        return _lead(settings, deadline)
    return _follow(settings, deadline)


def _lead(settings: FabricSettings, deadline: Deadline) -> tuple[Joined, list[RankHost]]:
    expected = Identity(Role.RENDEZVOUS, -1, 0, settings.world_size)
    with _listener(settings) as listener:
        links = Acceptor(listener, settings.key, expected, range(1, settings.world_size)).run(deadline)
    try:
        hosts = [this_host(settings.transport, settings.address[0])]
        for rank in range(1, settings.world_size):
            hosts.append(RankHost.from_json(links[rank].receive(deadline)))
        for rank, host in enumerate(hosts):
            if host.transport != settings.transport:
                raise RendezvousError(
                    f"rank {rank} was started with FERRULE_TRANSPORT={host.transport}, "
                    f"rank 0 with {settings.transport}; give all the same"
                )
        epoch = secrets.token_bytes(16)
        roster = {"epoch": epoch.hex(), "hosts": [host.to_json() for host in hosts]}
        for link in links.values():
            link.send(roster, deadline)
        joined = join(0, hosts, epoch, settings.key, None, deadline, links=links, spin_us=settings.spin_us)
    except FerruleError as error:
        _tell_all(links, str(error))
        raise
    return joined, hosts


def _follow(settings: FabricSettings, deadline: Deadline) -> tuple[Joined, list[RankHost]]:
    identity = Identity(Role.RENDEZVOUS, settings.rank, 0, settings.world_size)
    leader = connect(settings.address, settings.key, identity, deadline)
    try:
        # Listen where rank 0 was reached: the other ranks can most likely get there, and nobody else needs to.
        address = leader.socket.getsockname()[0]
        with socket.create_server((address, 0), family=leader.socket.family, backlog=128) as listener:
            own = this_host(settings.transport, address, listener.getsockname()[1])
            leader.send(own.to_json(), deadline)
            roster = leader.receive(deadline)
            hosts = [RankHost.from_json(fields) for fields in roster["hosts"]]
            joined = join(
                settings.rank,
                hosts,
                bytes.fromhex(roster["epoch"]),
                settings.key,
                listener,
                deadline,
                links={0: leader},
                spin_us=settings.spin_us,
                watch={leader.socket: lambda: _check_leader(leader, deadline)},
            )
    except BaseException:
        leader.socket.close()
        raise
    return joined, hosts


def _check_leader(leader: Link, deadline: Deadline) -> None:
    """Rank 0 spoke although it was not its turn: it gave up, or it died."""
    leader.receive(deadline)
    raise RendezvousError("rank 0 spoke out of turn during the rendezvous")


def _listener(settings: FabricSettings) -> socket.socket:
    if settings.listen_fd is not None:
        try:
            return socket.socket(fileno=settings.listen_fd)
        except OSError as error:
            raise ConfigError(
                f"FERRULE_LISTEN_FD={settings.listen_fd} is no socket ({error.strerror}); "
                "the launcher must pass the descriptor on"
            ) from error
    host, port = settings.address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise RendezvousError(
            f"rank 0 cannot listen on {host}:{port} (FERRULE_ADDRESS): {error.strerror or error}"
        ) from error


def _tell_all(links: Mapping[int, Link], text: str) -> None:
    """Let the others know at once what went wrong; those that are gone need not know."""
    for link in links.values():
        with contextlib.suppress(RendezvousError, OSError):
            link.send({"abort": text}, Deadline(1.0))
        link.socket.close()
