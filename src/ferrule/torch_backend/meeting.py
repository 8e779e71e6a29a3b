"""Rendezvous of a torch group's ranks: through torch's store, into a group of the fabric."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import msgspec
import numpy as np
import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ferrule import fabric
from ferrule.config import FabricSettings, environment, fabric_settings
from ferrule.errors import ConfigError, FerruleError, RendezvousError

_LOCALHOST = "127.0.0.1"
_WORD_LIMIT = 1 << 16
"""Bytes of what rank 0 says at most."""


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """Rank 0 to the others: where it listens. ``key``: the cluster key, empty where the environment has it."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    key: Annotated[bytes, msgspec.Meta(max_length=1024)]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Rank 0 to the others: why it could not start."""

    error: str


_words: msgspec.json.Decoder[Listening | Failed] = msgspec.json.Decoder(Listening | Failed)


def meet(store: Store, rank: int, size: int, timeout: float) -> fabric.Group:
    """Join the ``size`` ranks that share ``store``; every one of them calls this. ``timeout`` in seconds.

    Rank 0 tells the others through the store where it listens and, unless ``FERRULE_KEY`` is set, a fresh cluster
    key: the group is then as trustworthy as the store. Raises what `ferrule.fabric.init` raises.
    """
    settings = replace(_settings(), rank=rank, world_size=size, timeout=timeout)
    if size == 1:
        return fabric.init(settings=settings)
    # A store may outlive a group (torchrun's does): what an earlier one left there must not be taken for ours.
    record = f"ferrule/{store.add(f'ferrule/rank {rank}', 1)}"
    if rank == 0:
        return _lead(store, record, settings)
    return _follow(store, record, settings)


def all_accelerated(group: fabric.Group) -> bool:
    """Whether torch finds an accelerator on every rank; all call it."""
    found = np.array([torch.accelerator.is_available()])
    return bool(group.all_gather(found).all())


def store_from_environment(timeout: timedelta) -> tuple[Store, int, int]:
    """A store for the job that the ``FERRULE_*`` variables describe, this rank's number, and how many there are."""
    host = fabric_settings(environment(), strict=True).addresses[0][0]
    with fabric.init(strict=True, timeout=timeout.total_seconds()) as group:
        port = np.zeros(1, np.int64)
        if group.rank == 0:
            store = TCPStore(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)
            port[0] = store.port
        group.broadcast(port)
        if group.rank != 0:
            store = TCPStore(host, int(port[0]), is_master=False, timeout=timeout)
        group.barrier()
        return store, group.rank, group.size


def _settings() -> FabricSettings:
    """Settings of the environment on how to talk; who talks to whom is torch's to say."""
    job = ("FERRULE_RANK", "FERRULE_WORLD_SIZE", "FERRULE_LISTEN_FD")
    return fabric_settings({name: value for name, value in environment().items() if name not in job})


def _lead(store: Store, record: str, settings: FabricSettings) -> fabric.Group:
    try:
        listener, name, address = _listen(_known_hosts(store))
        port = listener.getsockname()[1]
        key = settings.key or secrets.token_bytes(32)
        word = Listening(name, port, b"" if settings.key else key)
    except FerruleError as error:
        store.set(record, msgspec.json.encode(Failed(str(error))).decode())
        raise
    with listener:
        store.set(record, msgspec.json.encode(word).decode())
        try:
            return fabric.init(
                settings=replace(settings, addresses=((address, port),), key=key, listen_fd=os.dup(listener.fileno()))
            )
        finally:
            # The key is of no more use there. A store that cannot forget keeps it.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                store.delete_key(record)


def _follow(store: Store, record: str, settings: FabricSettings) -> fabric.Group:
    try:
        store.wait([record], timedelta(seconds=settings.timeout))
    except RuntimeError as error:
        raise RendezvousError(
            f"rank {settings.rank}: rank 0 of the group has not told torch's store where it listens within "
            f"{settings.timeout:g} s; see whether it runs, and that all ranks use the backend ferrule ({error})"
        ) from error
    word = _word_of(store.get(record))
    if isinstance(word, Failed):
        raise RendezvousError(f"rank 0 of the group could not start: {word.error}")
    if bool(word.key) == bool(settings.key):
        having, lacking = ("this rank", "rank 0") if settings.key else ("rank 0", "this rank")
        raise ConfigError(f"FERRULE_KEY is set for {having} but not for {lacking} of the group; set it for all or none")
    return fabric.init(settings=replace(settings, addresses=((word.host, word.port),), key=settings.key or word.key))


def _word_of(said: bytes) -> Listening | Failed:
    """Raises `RendezvousError` where rank 0 cannot have said that."""
    try:
        if len(said) > _WORD_LIMIT:
            raise msgspec.DecodeError(f"{len(said)} bytes")
        return _words.decode(said)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RendezvousError(
            f"rank 0 has told torch's store what this version of ferrule does not say ({error}); install the same one "
            "on all hosts"
        ) from error


def _known_hosts(store: Store) -> list[str]:
    """By which names the ranks know the machine of rank 0 of the job, the best first."""
    hosts = []
    if os.environ.get("FERRULE_ADDRESS"):
        hosts.append(_settings().addresses[0][0])
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        hosts.append(store.host)
    if os.environ.get("MASTER_ADDR"):
        hosts.append(os.environ["MASTER_ADDR"])
    return hosts or [_LOCALHOST]


def _listen(hosts: Sequence[str]) -> tuple[socket.socket, str, str]:
    """A socket that others can reach, the host to reach it by, and the address that it has here."""
    for host in hosts:
        for family, address in _resolve(host):
            try:
                listener = socket.create_server((address, 0), family=family, backlog=128)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    continue  # another machine's
                raise RendezvousError(f"cannot listen on {host}: {error.strerror or error}") from error
            if host not in ("localhost", address) and ipaddress.ip_address(address).is_loopback:
                # Many a machine calls itself 127.0.1.1, but others that know the name mean an address of its own.
                listener.close()
                listener = socket.create_server(("", 0), family=socket.AF_INET, backlog=128)
            return listener, host, address
    address = _address_towards(hosts[0])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=128), address, address


def _resolve(host: str) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RendezvousError(f"the host {host!r} has no address: {error.strerror or error}") from error
    return [(family, str(address[0])) for family, _, _, _, address in found]


def _address_towards(host: str) -> str:
    """This machine's address on the way to ``host``: the one by which others of the job most likely reach it."""
    family, address = _resolve(host)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
        except OSError as error:
            raise RendezvousError(f"there is no way from here to {host}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])
