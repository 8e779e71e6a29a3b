"""Rules of firewalls, as their programs print them, and what they do with ranks' connections over a cable."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from build_trees import TREES
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_builder import probe_of

from ferrule.files import encode_record
from ferrule.links import Inventory, NetDevice
from ferrule.links.doctor import diagnose
from ferrule.links.doctor.packets import Blocked, Packets, blocked
from ferrule.links.linux.firewall.firewalld import ZONES, parse_zones
from ferrule.links.linux.firewall.iptables import IPTABLES, parse_saved
from ferrule.links.linux.firewall.nftables import NFT, NFT_LINES, parse_ruleset
from ferrule.links.linux.firewall.ufw import UFW, parse_status
from ferrule.links.linux.machine import SYSTEMCTL, UNITS
from ferrule.links.types.firewall import Firewall, FirewallChain, FirewallRule, RuleMatch
from ferrule.links.types.net import NetAddress

RULES = Path(__file__).parent / "firewalls"
"""nft-*: printed by nftables 1.0.6 in a network namespace; the others follow the programs' manuals."""
UNREACHABLE = "icmp-port-unreachable"
PUBLIC = "public: target: default (interfaces: eth0, services: ssh)"
PARSERS = {"iptables": parse_saved, "ufw": parse_status, "firewalld": parse_zones}


def ruleset(name: str) -> Firewall:
    kind = name.partition("-")[0]
    if kind == "nft":
        lines = (RULES / f"{name}.txt").read_text()
        return Firewall("nftables", True, chains=parse_ruleset((RULES / f"{name}.json").read_text(), lines))
    return Firewall(kind, True, chains=PARSERS[kind]((RULES / f"{name}.txt").read_text()))


def over(interface: str, address: str = "10.77.0.1", prefix: int = 24) -> Packets:
    return Packets.over(NetDevice(interface, "", "ethernet", addresses=(NetAddress(address, prefix),)))


def told(found: Blocked | None) -> tuple[str, bool, bool, str | None] | None:
    return None if found is None else (found.rule, found.rejects, found.partly, found.unless)


@pytest.mark.parametrize(
    ("name", "interface", "expected"),
    [
        ("nft-desk", "cable0", ("ip protocol tcp drop", False, False, "ip saddr @trusted accept")),
        ("nft-desk", "thunderbolt1", ("ip protocol tcp drop", False, False, "ip saddr @trusted accept")),
        ("nft-desk", "lo", None),
        ("nft-desk", "eth0", ("meta l4proto tcp reject with tcp reset", True, False, "ip saddr @trusted accept")),
        ("nft-ports", "cable0", ('iifname "cable0" tcp dport 40000-41000 drop', False, True, None)),
        ("nft-policy", "cable0", ("type filter hook input priority filter; policy drop;", False, False, None)),
        ("nft-policy", "cable1", None),
        ("nft-ingress", "cable0", ("ip saddr 10.77.0.0/16 drop", False, False, None)),
        ("nft-ingress", "cable1", None),
        ("nft-empty", "cable0", None),
        (
            "iptables-desk",
            "cable0",
            ("-A cables -p tcp -j REJECT --reject-with icmp-port-unreachable", True, False, None),
        ),
        ("iptables-desk", "cable1", None),
        ("iptables-desk", "eth0", (":INPUT DROP [12:3456]", False, False, None)),
        ("ufw-desk", "cable0", None),
        ("ufw-desk", "cable1", ("Anywhere on cable1 DENY IN Anywhere", False, False, None)),
        ("ufw-desk", "eth0", ("Default: deny (incoming), allow (outgoing), disabled (routed)", False, False, None)),
        ("firewalld-server", "cable0", None),
        ("firewalld-server", "eth0", (PUBLIC, True, False, None)),
        (
            "firewalld-server",
            "cable9",
            (PUBLIC, True, False, None),
        ),
        ("firewalld-server", "cable7", ("drop: target: DROP (interfaces: cable7)", False, False, None)),
        ("firewalld-workstation", "cable0", None),
    ],
)
def test_what_comes_over_a_cable_gets_in_or_is_stopped_by_this_rule(
    name: str, interface: str, expected: tuple[str, bool, bool, str | None] | None
) -> None:
    assert told(blocked(ruleset(name), over(interface))) == expected


def test_sources_count() -> None:
    assert told(blocked(ruleset("ufw-desk"), over("eth0", "10.99.0.7"))) is None
    assert told(blocked(ruleset("firewalld-server"), over("eth0", "10.99.0.7"))) is None


def chain(*rules: FirewallRule, **values: Any) -> FirewallChain:
    return FirewallChain("inet filter input", rules, "input", **values)


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (RuleMatch("port", ("32768-60999",)), "all"),
        (RuleMatch("port", ("1-65535",)), "all"),
        (RuleMatch("port", ("1-40000", "40001-65535")), "all"),
        (RuleMatch("port", ("22", "8000-9000")), None),
        (RuleMatch("port", ("22",), negated=True), "all"),
        (RuleMatch("port", ("40000",)), "some"),
        (RuleMatch("port", ("ssh",)), None),
        (RuleMatch("interface", ("cab*",)), "all"),
        (RuleMatch("interface", ("cab+",)), "all"),
        (RuleMatch("interface", ("cable",)), None),
        (RuleMatch("interface", ("lo",), negated=True), "all"),
        (RuleMatch("source", ("10.77.0.0/16",)), "all"),
        (RuleMatch("source", ("10.77.0.2",)), "some"),
        (RuleMatch("source", ("10.77.0.0-10.77.1.255",)), "all"),
        (RuleMatch("source", ("192.168.0.0/16",)), None),
        (RuleMatch("source", ("fd00::/8",)), None),
        (RuleMatch("source", ("example.org",)), None),
        (RuleMatch("destination", ("10.77.0.1",)), "all"),
        (RuleMatch("destination", ("10.77.0.2",)), None),
        (RuleMatch("protocol", ("tcp",)), "all"),
        (RuleMatch("protocol", ("udp",)), None),
        (RuleMatch("state", ("established", "related")), None),
        (RuleMatch("state", ("new",)), "all"),
        (RuleMatch("family", ("ipv6",)), None),
        (RuleMatch("kind", ("local",)), "all"),
        (RuleMatch("kind", ("broadcast",)), None),
        (RuleMatch("other"), None),
    ],
)
def test_a_rule_that_drops(match: RuleMatch, expected: str | None) -> None:
    found = blocked(
        Firewall("nftables", True, chains=(chain(FirewallRule("the rule", "drop", (match,))),)), over("cable0")
    )
    assert (None if found is None else "some" if found.partly else "all") == expected


def test_chains_that_lead_in_circles_end() -> None:
    rules = tuple(FirewallRule("round", verdict, (), "inet filter input") for verdict in ("jump", "jump", "goto"))  # type: ignore[arg-type]
    assert blocked(Firewall("nftables", True, chains=(chain(*rules),)), over("cable0")) is None


@cache
def damaged_sources() -> list[tuple[str, str]]:
    return [(path.name, path.read_text()) for path in sorted(RULES.iterdir())]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_output_never_raises(data: st.DataObject) -> None:
    name, text = data.draw(st.sampled_from(damaged_sources()))
    cut = data.draw(st.integers(0, len(text)))
    other = data.draw(st.sampled_from(["", "\0", "{}", '"', "]", "-j", " on ", "9" * 40, "\n", "null", "[[[[", "é"]))
    resume = data.draw(st.integers(cut, min(len(text), cut + 40)))
    broken = text[:cut] + other + text[resume:]
    kind = name.partition("-")[0]
    if kind == "nft":
        told = (broken, text) if name.endswith(".json") else (data.draw(st.sampled_from(damaged_sources()))[1], broken)
        chains = parse_ruleset(*told)
    else:
        chains = PARSERS[kind](broken)
    for interface in ("cable0", "eth0"):
        blocked(Firewall(kind, True, chains=chains), over(interface))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 100_000, '{"nftables": 7}', '{"nftables": [{"rule": 1}]}', "nan"]
)
def test_what_is_no_ruleset(text: str) -> None:
    assert not parse_ruleset(text, "")
    assert not any(parse(text) for parse in PARSERS.values())


def machine(**commands: str) -> Inventory:
    """The Spark, its rules read by root."""
    record = json.loads((TREES / "dgx-spark.json").read_text())
    names = {"nft": NFT, "lines": NFT_LINES, "iptables": IPTABLES, "ufw": UFW, "firewalld": ZONES}
    for name, text in commands.items():
        record["commands"][names[name]] = text
        record["errors"].pop(names[name], None)
    running = record["commands"][SYSTEMCTL].split()
    for name in set(commands) & set(UNITS):
        running[UNITS.index(name)] = "active"
    record["commands"][SYSTEMCTL] = "\n".join(running) + "\n"
    return probe_of("spark", record).inventory()


def desk(name: str) -> str:
    """The rules of the fixture, for interfaces of the Spark."""
    text = (RULES / name).read_text()
    return text.replace("cable0", "enp1s0f0np0").replace("cable1", "enP2p1s0f0np0").replace("10.77.", "192.168.")


@pytest.mark.parametrize(
    ("commands", "subject", "where", "cure"),
    [
        (
            {"nft": "nft-policy.json", "lines": "nft-policy.txt"},
            "enp1s0f0np0",
            NFT_LINES,
            "sudo nft insert rule inet filter input iifname enp1s0f0np0 accept",
        ),
        (
            {"iptables": "iptables-desk.txt"},
            "enp1s0f0np0",
            IPTABLES,
            "sudo iptables -t filter -I INPUT -i enp1s0f0np0 -j ACCEPT",
        ),
        ({"ufw": "ufw-desk.txt"}, "enP2p1s0f0np0", UFW, "sudo ufw insert 1 allow in on enP2p1s0f0np0"),
        (
            {"firewalld": "firewalld-server.txt"},
            "enP2p1s0f0np0, enP7s7",
            ZONES,
            "sudo firewall-cmd --permanent --zone=trusted --change-interface=enP2p1s0f0np0",
        ),
    ],
)
def test_the_rule_is_the_evidence_and_the_cure_is_its_programs(
    commands: dict[str, str], subject: str, where: str, cure: str
) -> None:
    inventory = machine(**{name: desk(text) for name, text in commands.items()})
    found = [one for one in diagnose([inventory]) if one.id.startswith("firewall")]
    assert [(one.id, one.severity) for one in found] == [("firewall-rule", "error")] * len(found)
    (one,) = (one for one in found if subject in one.subject)
    assert one.evidence[0][0] == f"$ {where}"
    read = " ".join(inventory.seen[f"$ {where}"].split())
    assert one.evidence[0][1] in read or one.evidence[0][1].startswith("public: target: default")
    assert cure in one.cure[0].commands


def test_a_rule_that_may_let_in_before_makes_it_a_warning() -> None:
    rules = (FirewallRule("who knows accept", "accept", (RuleMatch("other"),)), FirewallRule("drop", "drop"))
    unsure = Firewall("nftables", True, "accept", (chain(*rules),), f"$ {NFT_LINES}")
    found = diagnose([dataclasses.replace(machine(), firewalls=(unsure,))])
    (one,) = (one for one in found if one.id == "firewall-rule")
    assert one.severity == "warning"
    assert "which Ferrule does not understand: who knows accept." in one.what


def test_what_iptables_wrote_is_told_by_iptables_only() -> None:
    """nftables has the same rules, with conditions that it cannot put into JSON."""
    name = ("ip", "filter", "INPUT")
    entries = [
        {"chain": {**dict(zip(("family", "table", "name"), name, strict=True)), "hook": "input", "policy": "drop"}},
        {"chain": {"family": "inet", "table": "own", "name": "input", "hook": "input", "policy": "accept"}},
    ]
    found = machine(nft=json.dumps({"nftables": entries}), lines="", iptables=desk("iptables-desk.txt"))
    assert [[one.name for one in each.chains or () if one.hook] for each in found.firewalls] == [
        ["inet own input"],
        ["raw PREROUTING", "filter INPUT"],
    ]


def test_rules_that_let_in_are_no_finding() -> None:
    empty = machine(nft=(RULES / "nft-empty.json").read_text(), lines="")
    assert not [one for one in diagnose([empty]) if one.id.startswith("firewall")]
    assert empty.firewalls == ()


def test_rules_in_a_record_tell_no_names_and_no_public_addresses() -> None:
    record = json.loads((TREES / "dgx-spark.json").read_text())
    secret = {
        NFT: json.dumps({"nftables": [{"rule": {"comment": "Anna's laptop", "expr": [{"log": {"prefix": "anna "}}]}}]}),
        NFT_LINES: 'ip saddr 8.8.8.8 log prefix "anna " accept comment "Anna\'s" # handle 4\n',
        IPTABLES: '-A INPUT -s 8.8.8.8/32 -m comment --comment "Anna\'s laptop" -j LOG --log-prefix anna\n',
        UFW: "22/tcp                     ALLOW IN    8.8.8.8                    # Anna's laptop\n",
        ZONES: 'x\n  target: default\n\trule family="ipv4" source address="8.8.8.8" log prefix="anna" accept\n',
    }
    record["commands"] |= secret
    for command in secret:
        record["errors"].pop(command, None)
    saved = encode_record(probe_of("x", record).record())
    assert "198.1" in saved
    assert not [word for word in ("anna", "8.8.8.8", "laptop") if word in saved.lower()]
