"""nftables' ruleset, as ``nft -j`` tells it; the form is that of libnftables-json(5).

Each rule's own line comes from the same ruleset as text, by its handle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from ferrule.links.reader import shortened, table, tables
from ferrule.links.types.firewall import FirewallChain, FirewallRule, Policy, RuleMatch, Verdict

NFT = "nft -j -t list ruleset"
NFT_LINES = "nft -a -t list ruleset"

_FAMILIES = ("ip", "inet", "netdev")
"""That see IPv4, which cables are given."""
_HOOKS = ("ingress", "prerouting", "input")
_OTHER = RuleMatch("other")
_SILENT = {"counter", "log", "mangle", "ct helper", "notrack", "comment"}
"""Statements that decide nothing."""
_META: dict[str, Any] = {"iifname": "interface", "iif": "interface", "l4proto": "protocol", "pkttype": "kind"}
_IPV6 = RuleMatch("family", ("ipv6",))
_VERDICTS: dict[str, Verdict] = {one: one for one in get_args(Verdict)}
_MAX_LINE = 256


def parse_ruleset(told: str, lines: str) -> tuple[FirewallChain, ...] | None:
    """The filter chains that IPv4 packets to this machine may pass; None if ``told`` is no ruleset. Never raises."""
    try:
        ruleset = json.loads(told)
    except (ValueError, RecursionError):
        return None
    entries = tables(table(ruleset).get("nftables"))
    if not entries:
        return None
    texts = dict(_lines(lines))
    rules: dict[str, list[FirewallRule]] = {}
    for entry in entries:
        rule = table(entry.get("rule"))
        if rule.get("family") in _FAMILIES:
            name = _name(rule, "chain")
            line = texts.get(f"{name} {rule.get('handle')}", "")
            rules.setdefault(name, []).extend(_rules(rule, line, name.rpartition(" ")[0]))
    return tuple(
        _chain(chain, rules.get(_name(chain, "name"), []), texts)
        for chain in (table(entry.get("chain")) for entry in entries)
        if chain.get("family") in _FAMILIES and chain.get("type", "filter") == "filter"
    )


def _name(entry: Mapping[str, Any], chain: str) -> str:
    return " ".join(str(entry.get(key, "?"))[:_MAX_LINE] for key in ("family", "table", chain))


def _chain(chain: Mapping[str, Any], rules: list[FirewallRule], texts: Mapping[str, str]) -> FirewallChain:
    name, hook, priority = _name(chain, "name"), chain.get("hook"), chain.get("prio")
    policy: Policy = "drop" if chain.get("policy") == "drop" else "accept"
    devices = _devices(chain.get("dev"), texts.get(name, ""))
    if hook == "ingress" and not devices:
        hook = None  # it is of some interface, and which one was not told
    return FirewallChain(
        name,
        tuple(rules),
        hook if hook in _HOOKS else None,
        priority if isinstance(priority, int) else 0,
        policy,
        texts.get(name) or f"chain {name}: policy {policy}",
        devices,
    )


def _devices(told: Any, line: str) -> tuple[str, ...]:
    """Of a chain at the hook ingress; older versions tell them in the text only."""
    named = re.search(r'devices? =? ?(?:"([^"]{1,64})"|\{([^}]{1,4096})\})', line)
    if told is None and named:
        told = [named[1]] if named[1] else [one.strip(' "') for one in named[2].split(",")]
    return tuple(one for one in (told if isinstance(told, list) else [told]) if isinstance(one, str))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """``inet filter input 12`` and the rule with this handle; ``inet filter input`` and the chain's own line."""
    family = home = ""
    for line in text.splitlines():
        stripped = line.strip()
        if match := re.match(r"table (\w+) (\S+) \{", stripped):
            family = f"{match[1]} {match[2]}"
        elif match := re.match(r"chain (\S+) \{", stripped):
            home = f"{family} {match[1]}"
        elif match := re.fullmatch(r"(.{1,4096}?) # handle ([0-9]{1,18})", stripped):
            yield f"{home} {match[2]}", shortened(match[1])
        elif " hook " in stripped:
            yield home, shortened(stripped)


def _rules(rule: Mapping[str, Any], line: str, home: str) -> Iterator[FirewallRule]:
    """One, or for each entry of a verdict map one."""
    matches: list[RuleMatch] = []
    statements = tables(rule.get("expr"))
    line = line or shortened(json.dumps(statements))
    for statement in statements:
        for key, value in statement.items():
            if key == "match":
                matches += _matches(table(value))
            elif key in _VERDICTS:
                yield _rule(line, matches, home, key, value)
            elif key == "vmap":
                yield from _mapped(table(value), line, matches, home)
            elif key not in _SILENT:
                matches.append(_OTHER)


def _rule(line: str, matches: list[RuleMatch], home: str, key: str, value: Any) -> FirewallRule:
    target = table(value).get("target")
    return FirewallRule(line, _VERDICTS[key], tuple(matches), f"{home} {target}" if isinstance(target, str) else None)


def _mapped(value: Mapping[str, Any], line: str, matches: list[RuleMatch], home: str) -> Iterator[FirewallRule]:
    pairs = table(value.get("data")).get("set")
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            more = _matches({"op": "==", "left": value.get("key"), "right": pair[0]})
            for key, found in table(pair[1]).items():
                if key in _VERDICTS:
                    yield _rule(line, [*matches, *more], home, key, found)


def _matches(match: Mapping[str, Any]) -> list[RuleMatch]:
    left, negated = table(match.get("left")), match.get("op") == "!="
    values = _values(match.get("right"))
    if values is None or match.get("op") not in ("==", "!=", "in"):
        return [_OTHER]
    meta, payload = table(left.get("meta")).get("key"), table(left.get("payload"))
    if isinstance(meta, str):
        if meta in ("nfproto", "protocol"):
            return [RuleMatch("family", tuple({"ip": "ipv4", "ip6": "ipv6"}.get(one, one) for one in values), negated)]
        return [RuleMatch(_META[meta], values, negated) if meta in _META else _OTHER]
    if payload:
        return _payload(payload.get("protocol"), payload.get("field"), values, negated=negated)
    if table(left.get("ct")).get("key") == "state":
        return [RuleMatch("state", values, negated)]
    if table(left.get("fib")).get("result") == "type":
        return [RuleMatch("kind", values, negated)]
    return [_OTHER]


def _payload(protocol: Any, field: Any, values: tuple[str, ...], *, negated: bool) -> list[RuleMatch]:
    if protocol == "ip":
        if field in ("saddr", "daddr"):
            return [RuleMatch("source" if field == "saddr" else "destination", values, negated)]
        return [RuleMatch("protocol", values, negated) if field == "protocol" else _OTHER]
    if protocol in ("ip6", "icmpv6"):
        return [_IPV6]
    carried = [RuleMatch("protocol", (protocol,))] if isinstance(protocol, str) and protocol != "th" else []
    if protocol in ("tcp", "th") and field == "dport":
        return [*carried, RuleMatch("port", values, negated)]
    return [*carried, _OTHER]


def _values(right: Any) -> tuple[str, ...] | None:
    """None for named sets and what is not understood."""
    if isinstance(right, dict) and "set" in right:
        right = right["set"]
    found = []
    for one in right if isinstance(right, list) else [right]:
        value = table(table(one).get("elem")).get("val", one) if isinstance(one, dict) else one
        bounds, prefix = table(value).get("range"), table(table(value).get("prefix"))
        if isinstance(bounds, list) and len(bounds) == 2:
            found.append(f"{bounds[0]}-{bounds[1]}")
        elif prefix:
            found.append(f"{prefix.get('addr')}/{prefix.get('len')}")
        elif isinstance(value, (str, int)) and not isinstance(value, bool) and not str(value).startswith("@"):
            found.append(str(value))
        else:
            return None
    return tuple(found) or None
