"""Packet filter evaluation: its verdict on the connections that ranks make over a cable. Pure.

Rules are walked as the kernel does. A condition that is not understood, or that only some of the packets meet, makes a
rule uncertain: it decides nothing by itself, and is told.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ferrule.links.types.firewall import Firewall, FirewallChain, FirewallRule, RuleMatch
from ferrule.links.types.net import NetDevice

PORTS = (32768, 60999)
"""Ports on which ranks listen: the kernel chooses in ``net.ipv4.ip_local_port_range``, this by default."""

Fit = Literal["no", "some", "unknown", "yes"]
"""Whether a rule is for these packets: for none, some of the ports or sources, not understood, all."""

_HOOKS = ("ingress", "prerouting", "input")
_TCP = ("tcp", "6", "all", "0", "ip")
_FAMILY = ("ipv4", "2")
_TO_THIS_HOST = ("local", "host", "unicast")
_MAX_DEPTH = 16
_MAX_RULES = 20_000
"""No real walk is that long; a damaged record's chains may lead in circles."""


@dataclass(frozen=True)
class Blocked:
    """``rule``: its line, or that of the chain's policy; ``chain``: where packets enter. ``partly``: only some of them
    meet it. ``unless``: the line of a rule that may let them in before, if it means what Ferrule does not understand.
    """

    firewall: Firewall
    chain: FirewallChain
    rule: str
    rejects: bool
    partly: bool = False
    unless: str | None = None


@dataclass(frozen=True)
class Packets:
    """New TCP connections from a neighbour on the cable to the ports of ranks here."""

    interface: str
    sources: tuple[ipaddress.IPv4Network, ...]
    destinations: tuple[ipaddress.IPv4Network, ...]

    @classmethod
    def over(cls, netdev: NetDevice) -> Packets:
        ours = [ipaddress.IPv4Interface(f"{one.address}/{one.prefix}") for one in netdev.addresses if one.version == 4]
        here = tuple(ipaddress.IPv4Network(one.ip) for one in ours)
        return cls(netdev.name, tuple(one.network for one in ours), here)


def blocked(firewall: Firewall, packets: Packets) -> Blocked | None:
    """The first place where these are kept out for certain; else one where some of them are; None if they get in."""
    entered = [
        chain
        for chain in firewall.chains or ()
        if chain.hook in _HOOKS and (not chain.netdevs or packets.interface in chain.netdevs)
    ]
    entered.sort(key=lambda one: (_HOOKS.index(one.hook or "input"), one.priority))
    partly = None
    for chain in entered:
        walk = _Walk({one.name: one for one in firewall.chains or ()}, packets)
        found = walk.through(chain)
        if found is None and chain.policy != "accept":
            found = FirewallRule(chain.policy_line, chain.policy)
        if found is not None and found.verdict in ("drop", "reject"):
            return Blocked(firewall, chain, found.line, found.verdict == "reject", unless=walk.unless)
        if walk.partly is not None and partly is None:
            rejects = walk.partly.verdict == "reject"
            partly = Blocked(firewall, chain, walk.partly.line, rejects, partly=True, unless=walk.unless)
    return partly


@dataclass
class _Walk:
    chains: Mapping[str, FirewallChain]
    packets: Packets
    unless: str | None = None
    partly: FirewallRule | None = None
    _steps: int = dataclasses.field(default=0, init=False)

    def through(self, chain: FirewallChain, *, sure: bool = True, depth: int = 0) -> FirewallRule | None:
        """The rule that decides about all of the packets; None if they fall out of the end of the chain."""
        for rule in chain.rules:
            self._steps += 1
            if depth > _MAX_DEPTH or self._steps > _MAX_RULES:
                return None
            fit = _fit(rule, self.packets)
            if fit == "no":
                continue
            certain = sure and fit == "yes"
            decided = self._decide(rule, fit, certain=certain, sure=sure, depth=depth)
            if decided is not None:
                return decided
            if certain and rule.verdict in ("return", "goto"):
                return None
        return None

    def _decide(self, rule: FirewallRule, fit: Fit, *, certain: bool, sure: bool, depth: int) -> FirewallRule | None:
        match rule.verdict:
            case "accept" | "drop" | "reject" if certain:
                return rule
            case "accept" if fit != "some" and self.unless is None:
                self.unless = rule.line
            case "drop" | "reject" if fit == "some" and sure and self.partly is None:
                self.partly = rule
            case "jump" | "goto" if (target := self.chains.get(rule.target or "")) is not None:
                return self.through(target, sure=certain, depth=depth + 1)
        return None


def _fit(rule: FirewallRule, packets: Packets) -> Fit:
    found = {_meets(match, packets) for match in rule.matches}
    wanted: tuple[Fit, ...] = ("no", "unknown", "some")
    return next((one for one in wanted if one in found), "yes")


def _meets(match: RuleMatch, packets: Packets) -> Fit:
    found = _TESTS[match.field](match.values, packets)
    if match.negated:
        opposite: dict[Fit, Fit] = {"yes": "no", "no": "yes"}
        return opposite.get(found, found)
    return found


def _interface(values: Iterable[str], packets: Packets) -> Fit:
    patterns = (re.sub(r"\+$", "*", value).replace("[", "[[]") for value in values)
    return _certain(any(fnmatch.fnmatchcase(packets.interface, pattern) for pattern in patterns))


def _port(values: Iterable[str], packets: Packets) -> Fit:
    low, high = PORTS
    within = 0
    for value in values:
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", value)
        if match is None:
            return "unknown"
        first, last = max(low, int(match[1])), min(high, int(match[2] or match[1]))
        within += max(0, last - first + 1)
    return "no" if not within else "yes" if within >= high - low + 1 else "some"


def _networks(values: Iterable[str], wanted: tuple[ipaddress.IPv4Network, ...]) -> Fit:
    try:
        listed = [net for value in values for net in _parsed(value)]
    except ValueError:
        return "unknown"
    if not wanted:
        return "unknown"
    inside = [any(net.subnet_of(one) for one in listed) for net in wanted]
    if all(inside):
        return "yes"
    return "some" if any(net.overlaps(one) for net in wanted for one in listed) else "no"


def _parsed(value: str) -> list[ipaddress.IPv4Network]:
    """A network, an address, or all from one address to another."""
    first, dash, last = value.partition("-")
    if dash:
        ends = ipaddress.IPv4Address(first), ipaddress.IPv4Address(last)
        return list(ipaddress.summarize_address_range(*ends))
    if ":" in value:
        return []
    return [ipaddress.IPv4Network(value, strict=False)]


def _certain(yes: bool) -> Fit:
    return "yes" if yes else "no"


_TESTS: dict[str, Callable[[tuple[str, ...], Packets], Fit]] = {
    "interface": _interface,
    "family": lambda values, packets: _certain(any(value in _FAMILY for value in values)),
    "protocol": lambda values, packets: _certain(any(value in _TCP for value in values)),
    "source": lambda values, packets: _networks(values, packets.sources),
    "destination": lambda values, packets: _networks(values, packets.destinations),
    "port": _port,
    "state": lambda values, packets: _certain("new" in values),
    "kind": lambda values, packets: _certain(any(value in _TO_THIS_HOST for value in values)),
    "other": lambda values, packets: "unknown",
}
