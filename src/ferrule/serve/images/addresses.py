"""Addresses that a server may fetch from for its clients: those of the public internet, and no others. Pure, but for
the networks of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface, ip_network
from typing import Final

from ferrule.fabric.join.addresses import host_addresses

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

REFUSED: Final = tuple(
    ip_network(each) for each in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20", "2001:db8::/32")
)
"""Special ones that this Python may take for global (https://www.iana.org/assignments/iana-ipv4-special-registry), and
Azure's service for its own machines (https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16).
Those of other clouds are link-local, private, shared, or among these."""
_GLOBAL: Final = ip_network("2000::/3")
"""Global unicast of IPv6 (RFC 4291, 2.4)."""
_TRANSLATED: Final = ip_network("64:ff9b::/96")
"""IPv4 behind a translator (RFC 6052)."""


def is_public(address: Address, own: Iterable[Network] = ()) -> bool:
    """Whether ``address`` is one of the public internet, outside of this machine's ``own`` networks. One that carries
    an IPv4 address (mapped, 6to4, Teredo, NAT64) counts as that, too."""
    if any(address in network for network in (*REFUSED, *own)):
        return False
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None or address in _TRANSLATED:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF), own)
        carried = [*(address.teredo or ()), *filter(None, [address.sixtofour])]
        if address not in _GLOBAL or not all(is_public(each, own) for each in carried):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_of_others(address: Address) -> bool:
    """Whether ``address`` is a public one that is not in a network of this machine's."""
    return is_public(address, own_networks())


def own_networks() -> list[Network]:
    """Networks that this machine is in: what is public there, as IPv6 at home, need not be open to everybody."""
    return [ip_interface(f"{address}/{prefix}").network for _, _, address, prefix in host_addresses()]
