"""ufw's rules, as ``ufw status verbose`` prints them to root, and its defaults, which every user may read."""

from __future__ import annotations

import re
from typing import Literal

from ferrule.links.types.firewall import FirewallChain, FirewallRule, Policy, RuleMatch, Verdict

UFW = "ufw status verbose"
UFW_DEFAULTS = "/etc/default/ufw"

_ACTIONS: dict[str, Verdict] = {"ALLOW": "accept", "DENY": "drop", "REJECT": "reject", "LIMIT": "accept"}
_POLICIES: dict[str, Policy] = {"allow": "accept", "deny": "drop", "reject": "reject"}
_DEFAULT_POLICIES = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop"}
_RULE = re.compile(r"(\S.{0,200}?)\s{2,}(ALLOW|DENY|REJECT|LIMIT)(?: (IN|OUT|FWD))?\s{2,}(\S.{0,200}?)\s*(?:#.*)?")


def parse_status(text: str) -> tuple[FirewallChain, ...]:
    """One chain with the rules for what comes in, by IPv4; none if ufw is off, or this is no status. Never raises."""
    lines = text.splitlines()
    if "Status: active" not in lines:
        return ()
    policies = ((line, re.match(r"Default: (allow|deny|reject) \(incoming\)", line)) for line in lines)
    line, policy = next(((line, match[1]) for line, match in policies if match), ("", "allow"))
    rules = tuple(rule for one in lines for rule in [_rule(one)] if rule is not None)
    return (FirewallChain("ufw", rules, "input", 0, _POLICIES[policy], line),)


def policy_of_defaults(text: str | None) -> str | None:
    match = re.search(r'^DEFAULT_INPUT_POLICY="?(ACCEPT|DROP|REJECT)"?\s*$', text or "", re.MULTILINE)
    return _DEFAULT_POLICIES[match[1]] if match else None


def _rule(line: str) -> FirewallRule | None:
    """``22/tcp on eth0   ALLOW IN   10.0.0.0/8``. IPv6 and what goes out or through is left out."""
    match = _RULE.fullmatch(line.strip())
    if match is None or "(v6)" in line or match[3] in ("OUT", "FWD"):
        return None
    matches = [*_side(match[1], "destination"), *_side(match[4], "source")]
    if match[2] == "LIMIT":
        matches.append(RuleMatch("other"))
    return FirewallRule(" ".join(line.split()), _ACTIONS[match[2]], tuple(matches))


def _side(text: str, field: Literal["source", "destination"]) -> list[RuleMatch]:
    """``Anywhere``, ``10.0.0.1 22/tcp on eth0``, ``6000:6007/udp``; a name of an application is not understood."""
    text, on, name = text.partition(" on ")
    matches = [RuleMatch("interface", (name.strip(),))] if on else []
    for word in text.split():
        if re.fullmatch(r"[0-9.]{7,15}(?:/[0-9]{1,2})?", word):
            matches.append(RuleMatch(field, (word,)))
        elif ports := re.fullmatch(r"([0-9:,]{1,200})(?:/(tcp|udp))?", word):
            matches += [RuleMatch("protocol", (ports[2],))] if ports[2] else []
            listed = tuple(ports[1].replace(":", "-").split(","))
            matches.append(RuleMatch("port", listed) if field == "destination" else RuleMatch("other"))
        elif protocol := re.fullmatch(r"Anywhere/(\w{1,8})", word):
            matches.append(RuleMatch("protocol", (protocol[1],)))
        elif word != "Anywhere" and not re.fullmatch(r"\(.{1,64}\)", word):
            matches.append(RuleMatch("other"))
    return matches
