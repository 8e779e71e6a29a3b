"""Packet filters that are set up, and their rules where this user may read them: mostly that is root only."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.links.linux.firewall.firewalld import ZONES, parse_zones
from ferrule.links.linux.firewall.iptables import IPTABLES, parse_saved
from ferrule.links.linux.firewall.nftables import NFT, NFT_LINES, parse_ruleset
from ferrule.links.linux.firewall.ufw import UFW, UFW_DEFAULTS, parse_status, policy_of_defaults
from ferrule.links.reader import Reader
from ferrule.links.types.firewall import Firewall, FirewallChain
from ferrule.links.types.machine import Service

FIREWALL_UNITS = ("firewalld", "ufw", "nftables", "iptables")
COMMANDS = (NFT, NFT_LINES, IPTABLES, UFW, ZONES)

_PARSERS: dict[str, tuple[str, Callable[[str], tuple[FirewallChain, ...]]]] = {
    "firewalld": (ZONES, parse_zones),
    "ufw": (UFW, parse_status),
    "iptables": (IPTABLES, parse_saved),
}
_OF_IPTABLES = ("ip filter INPUT", "ip raw PREROUTING", "ip mangle PREROUTING")


def read_firewalls(reader: Reader, services: tuple[Service, ...]) -> tuple[Firewall, ...]:
    """Those that are on, or have rules; the one whose words fit best comes first."""
    active = {one.name for one in services if one.active}
    found = [one for kind in ("firewalld", "ufw") if kind in active for one in [_by_program(reader, kind)]]
    saved = _by_program(reader, "iptables")
    chains = _nftables(reader)
    if chains and saved.chains:
        # What iptables wrote is here, too, but with conditions that only iptables can put into words.
        chains = tuple(one for one in chains if one.name not in _OF_IPTABLES)
    if chains or "nftables" in active:
        found.append(Firewall("nftables", True, _policy(chains), chains, f"$ {NFT_LINES}"))
    if saved.chains or "iptables" in active:
        found.append(saved)
    if not found and (reader.refused(NFT) or reader.refused(IPTABLES)):
        found.append(Firewall("nftables" if reader.refused(NFT) else "iptables"))
    return tuple(found)


def _by_program(reader: Reader, kind: str) -> Firewall:
    command, parse = _PARSERS[kind]
    told = reader.output(command, quiet=True)
    chains = None if told is None else parse(told) or None
    policy = _policy(chains)
    if kind == "ufw" and policy is None:
        policy = policy_of_defaults(reader.block(UFW_DEFAULTS))
    return Firewall(kind, True, policy, chains, f"$ {command}")


def _nftables(reader: Reader) -> tuple[FirewallChain, ...] | None:
    told = reader.output(NFT, quiet=True)
    if told is None:
        return None
    chains = parse_ruleset(told, reader.output(NFT_LINES, quiet=True) or "")
    if chains is None:
        reader.problem(f"$ {NFT}", "is no ruleset of nftables")
    return chains


def _policy(chains: tuple[FirewallChain, ...] | None) -> str | None:
    """``drop`` if any chain that incoming packets enter drops what no rule names."""
    policies = [one.policy for one in chains or () if one.hook == "input"]
    return None if not policies else "accept" if set(policies) == {"accept"} else "drop"
