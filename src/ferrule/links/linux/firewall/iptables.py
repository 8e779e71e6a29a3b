"""iptables' rules, as ``iptables-save`` prints them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ferrule.links.reader import shortened
from ferrule.links.types.firewall import FirewallChain, FirewallRule, MatchField, Policy, RuleMatch, Verdict

IPTABLES = "iptables-save"

_HOOKS = {("filter", "INPUT"): "input", ("raw", "PREROUTING"): "prerouting", ("mangle", "PREROUTING"): "prerouting"}
_PRIORITIES = {"raw": -300, "mangle": -150, "filter": 0}
_FIELDS: dict[str, MatchField] = {
    "-i": "interface",
    "--in-interface": "interface",
    "-p": "protocol",
    "--protocol": "protocol",
    "-s": "source",
    "--source": "source",
    "-d": "destination",
    "--destination": "destination",
    "--dport": "port",
    "--dports": "port",
    "--destination-port": "port",
    "--destination-ports": "port",
    "--ctstate": "state",
    "--state": "state",
    "--dst-type": "kind",
    "--pkt-type": "kind",
}
_SILENT = ("-m", "--match", "--comment", "--reject-with", "-c")
"""Options that decide nothing, with the word that follows."""
_VERDICTS: dict[str, Verdict] = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "reject", "RETURN": "return"}


def parse_saved(text: str) -> tuple[FirewallChain, ...]:
    """All chains of the tables that filter what comes in. Never raises."""
    chains: dict[str, tuple[str | None, int, Policy, str]] = {}
    rules: dict[str, list[FirewallRule]] = {}
    home = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"\*(\w{1,32})", line.strip()):
            home = match[1]
        elif home not in _PRIORITIES:
            continue
        elif match := re.match(r":(\S{1,64}) (ACCEPT|DROP|-)", line):
            policy: Policy = "drop" if match[2] == "DROP" else "accept"
            hook = _HOOKS.get((home, match[1]))
            chains[f"{home} {match[1]}"] = (hook, _PRIORITIES[home], policy, shortened(line))
        elif match := re.match(r"(?:\[[0-9:]{1,40}\] )?-A (\S{1,64})(?: |$)", line):
            found = _rule(line[match.end() :], shortened(line), home)
            if found is not None:
                rules.setdefault(f"{home} {match[1]}", []).append(found)
    return tuple(
        FirewallChain(name, tuple(rules.get(name, ())), hook, priority, policy, line)
        for name, (hook, priority, policy, line) in chains.items()
    )


def _rule(text: str, line: str, home: str) -> FirewallRule | None:
    """None for a rule without a target: it only counts."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    matches: list[RuleMatch] = []
    verdict: Verdict | None = None
    target = None
    for negated, option, values in _options(words):
        first = values[0] if values else ""
        if option in ("-j", "-g", "--jump", "--goto"):
            jump: Verdict = "jump" if option in ("-j", "--jump") else "goto"
            verdict = _VERDICTS.get(first, jump)
            target = f"{home} {first}" if verdict == jump else None
        elif option in _FIELDS:
            matches.append(_match(_FIELDS[option], first, negated=negated))
        elif option == "--syn":
            matches.append(RuleMatch("state", ("new",), negated))
        elif option not in _SILENT:
            matches.append(RuleMatch("other"))
    return None if verdict is None else FirewallRule(line, verdict, tuple(matches), target)


def _match(field: MatchField, value: str, *, negated: bool) -> RuleMatch:
    values = value.lower().split(",") if field != "interface" else [value]
    if field == "port":
        values = [one.replace(":", "-") for one in values]
    return RuleMatch(field, tuple(values), negated)


def _options(words: list[str]) -> Iterator[tuple[bool, str, list[str]]]:
    """Each option with the words that follow it; a ``!`` before it negates it."""
    option: str | None = None
    negated = turned = False
    values: list[str] = []
    for word in words:
        if word == "!":
            turned = True
        elif word.startswith("-") and len(word) > 1 and not word[1:].isdigit():
            if option is not None:
                yield negated, option, values
            option, negated, values, turned = word, turned, [], False
        else:
            values.append(word)
    if option is not None:
        yield negated, option, values
