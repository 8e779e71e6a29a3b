"""RDMA devices and their ports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gid:
    """``type``: ``RoCE v1`` or ``RoCE v2``; None on InfiniBand and where the system does not tell.

    ``address``: the IP address that it is made of: IPv4 where it is an IPv4-mapped one.
    """

    index: int
    value: str
    type: str | None = None
    netdev: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """``rate_gb_s`` in Gbit/s; ``*_mtu`` in bytes. ``state``: such as ``ACTIVE``, ``INIT``, ``DOWN``.

    ``netdevs``: the network interfaces of this port. ``errors``: the kernel's counters that are not zero and should be.
    """

    number: int
    path: str
    state: str | None = None
    phys_state: str | None = None
    rate_text: str | None = None
    rate_gb_s: float | None = None
    link_layer: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    active_mtu: int | None = None
    max_mtu: int | None = None
    errors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """``software``: emulated in the kernel (``rxe``, ``siw``), on a network interface and slower than TCP."""

    name: str
    path: str
    node_type: str | None = None
    firmware: str | None = None
    board: str | None = None
    hca_type: str | None = None
    driver: str | None = None
    pci_address: str | None = None
    software: bool = False
    ports: tuple[RdmaPort, ...] = ()
