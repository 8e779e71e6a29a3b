"""firewalld's zones, as ``firewall-cmd --list-all-zones`` prints them.

A packet belongs to the zone of its source, else to that of its interface, else to the default zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import get_args

from ferrule.links.reader import shortened
from ferrule.links.types.firewall import FirewallChain, FirewallRule, MatchField, Policy, RuleMatch, Verdict

ZONES = "firewall-cmd --list-all-zones"

_TARGETS: dict[str, Policy] = {"ACCEPT": "accept", "DROP": "drop", "default": "reject", "%%REJECT%%": "reject"}
_RICH: dict[str, Verdict] = {one: one for one in get_args(Policy)}
_LEADS: dict[str, MatchField] = {"sources": "source", "interfaces": "interface"}
"""Settings by which packets come into a zone, the first one first."""


@dataclass
class _Zone:
    name: str
    marks: str
    settings: dict[str, str] = field(default_factory=dict)
    rich: list[str] = field(default_factory=list)

    def listed(self, key: str) -> list[str]:
        return self.settings.get(key, "").split()


def parse_zones(text: str) -> tuple[FirewallChain, ...]:
    """A chain for each zone, and one that leads to them; none if these are no zones. Never raises."""
    zones = _zones(text)
    if not zones:
        return ()
    rules = [
        FirewallRule(f"{zone.name}: {key}: {' '.join(values)}", "goto", (RuleMatch(kind, values),), f"zone {zone.name}")
        for key, kind in _LEADS.items()
        for zone in zones
        if (values := tuple(zone.listed(key)))
    ]
    # Older versions do not mark the default zone; then it is the one that most distributions ship.
    default = [zone for zone in zones if "default" in zone.marks] or [zone for zone in zones if zone.name == "public"]
    rules += [FirewallRule(f"{zone.name} ({zone.marks})", "goto", (), f"zone {zone.name}") for zone in default[:1]]
    return (FirewallChain("firewalld", tuple(rules), "input"), *map(_chain, zones))


def _zones(text: str) -> list[_Zone]:
    zones: list[_Zone] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"(\S{1,64})(?: \(([\w, ]{1,64})\))?\s*", line):
            zones.append(_Zone(match[1], match[2] or ""))
        elif zones and (match := re.fullmatch(r"\s+([a-z -]{1,40}): ?(.{0,4096})", line)):
            zones[-1].settings[match[1].strip()] = match[2].strip()
        elif zones and line.strip().startswith("rule "):
            zones[-1].rich.append(line.strip())
    return [zone for zone in zones if "target" in zone.settings]


def _chain(zone: _Zone) -> FirewallChain:
    rules = [_rich(line) for line in zone.rich]
    for number, _, protocol in (one.partition("/") for one in zone.listed("ports")):
        matches = (RuleMatch("protocol", (protocol,)), RuleMatch("port", (number,)))
        rules.append(FirewallRule(f"{zone.name}: ports: {number}/{protocol}", "accept", matches))
    rules += [
        FirewallRule(f"{zone.name}: protocols: {one}", "accept", (RuleMatch("protocol", (one,)),))
        for one in zone.listed("protocols")
    ]
    policy = _TARGETS.get(zone.settings["target"], "reject")
    # Zones are entered by a goto, so what falls out of one is decided here.
    rules.append(FirewallRule(_line(zone), policy))
    return FirewallChain(f"zone {zone.name}", tuple(rules), None, 0, policy, _line(zone))


def _line(zone: _Zone) -> str:
    told = ", ".join(
        f"{key}: {' '.join(zone.listed(key))}" for key in ("interfaces", "services", "ports") if zone.listed(key)
    )
    return shortened(f"{zone.name}: target: {zone.settings['target']}" + (f" ({told})" if told else ""))


def _rich(line: str) -> FirewallRule:
    """``rule family="ipv4" source address="10.0.0.0/8" accept``; anything more is not understood."""
    words = line.split()
    verdict: Verdict = next((_RICH[one] for one in words if one in _RICH), "continue")
    matches = []
    for word in words[1:]:
        if match := re.fullmatch(r'family="(ipv[46])"', word):
            matches.append(RuleMatch("family", (match[1],)))
        elif match := re.fullmatch(r'address="([0-9./]{7,18})"', word):
            matches.append(RuleMatch("source", (match[1],)))
        elif word not in ("source", verdict):
            matches.append(RuleMatch("other"))
    return FirewallRule(shortened(line), verdict, tuple(matches))
