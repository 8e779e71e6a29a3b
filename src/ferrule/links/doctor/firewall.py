"""Firewalls that keep other hosts out, by the rule that does it where the rules can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrule.links.doctor.cures import by_hand, run
from ferrule.links.doctor.netdev import CABLES, subnets
from ferrule.links.doctor.packets import PORTS, Blocked, Packets, blocked
from ferrule.links.findings import Cure, Finding, Severity
from ferrule.links.linux.firewall.nftables import NFT
from ferrule.links.linux.firewall.ufw import UFW_DEFAULTS
from ferrule.links.linux.machine import SYSTEMCTL
from ferrule.links.macos.machine import FIREWALL
from ferrule.links.types.firewall import Firewall
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.net import NetDevice

_WHY = "Hosts that cannot reach each other time out when a model starts: ranks listen on ports that the system chooses"
_TRUST = "Trust what comes over the cables, which no other machine is on."


def check(inventory: Inventory) -> Iterator[Finding]:
    cables = cable_interfaces(inventory)
    shut: dict[Blocked, list[str]] = {}
    for one in cables:
        packets = Packets.over(one)
        stops = [stop for firewall in inventory.firewalls if (stop := blocked(firewall, packets)) is not None]
        if stops:
            surest = min(stops, key=lambda stop: stop.partly or stop.unless is not None)
            shut.setdefault(surest, []).append(one.name)
    for stop, names in shut.items():
        yield _rule(inventory, stop, names)
    if shut:
        return
    for firewall in inventory.firewalls:
        if firewall.chains is None or not cables:
            yield from _firewall(inventory, firewall, [one.name for one in cables])
    if cables and not any(one.active or one.chains is not None for one in inventory.firewalls):
        yield from _unread(inventory)


def cable_interfaces(inventory: Inventory) -> list[NetDevice]:
    """Interfaces that lead to another host only, not to the internet."""
    gateways = {route.netdev for route in inventory.routes if route.destination == "default"}
    kinds = ("thunderbolt", "ethernet", "infiniband")
    return [one for one in inventory.netdevs if one.kind in kinds and one.carrier and one.name not in gateways]


def _rule(inventory: Inventory, stop: Blocked, names: Sequence[str]) -> Finding:
    kind, low, high = stop.firewall.kind, *PORTS
    does = "rejects" if stop.rejects else "drops"
    what = "some of what" if stop.partly else "what"
    told = f"The firewall {kind} {does} {what} other hosts send over {', '.join(names)} to the ports of ranks."
    severity: Severity = "error"
    if stop.unless is not None or stop.partly:
        severity = "warning"
    if stop.unless is not None:
        told += f" A rule before that may let them in, which Ferrule does not understand: {stop.unless}."
    ends = "are refused" if stop.rejects else "time out"
    why = f"No model starts over two hosts: connections to ports {low} to {high}, where ranks listen, {ends}."
    evidence = ((stop.firewall.where, stop.rule or f"{kind}: {does} what no rule names"),)
    cure = _let_in(inventory, stop, names)
    return Finding("firewall-rule", severity, ", ".join(names), told, evidence, why, cure)


def _let_in(inventory: Inventory, stop: Blocked, names: Sequence[str]) -> tuple[Cure, ...]:
    kind = stop.firewall.kind
    if kind not in ("nftables", "iptables"):
        return _open(inventory, kind, names)
    last = "This lasts until the next start, or until the firewall is loaded again: write it where its rules are kept."
    if kind == "iptables":
        table, chain = stop.chain.name.split(" ", 1)
        rules = (f"sudo iptables -t {table} -I {chain} -i {name} -j ACCEPT" for name in names)
        return run(f"{_TRUST} {last}", *rules)
    if stop.chain.hook == "ingress":
        return run(f"Take the rule out of the chain {stop.chain.name}. {last}", "sudo nft -a list ruleset")
    rules = (f"sudo nft insert rule {stop.chain.name} iifname {name} accept" for name in names)
    return run(f"{_TRUST} {last}", *rules)


def _unread(inventory: Inventory) -> Iterator[Finding]:
    """No service of a firewall is known to run, and yet there may be rules, as of container engines."""
    unknown = next((one for one in inventory.firewalls if one.active is None), None)
    if unknown is None:
        return
    live = inventory.machine.tree == "live"
    what = "Only root can read the rules of the firewall, so it was not checked whether one keeps other hosts out."
    cure = run("Run it as root; it only reads.", "sudo ferrule doctor" if live else "sudo ferrule links record FILE")
    yield Finding("firewall", "note", unknown.kind, what, ((f"$ {NFT}", "only root may"),), f"{_WHY}.", cure)


def _firewall(inventory: Inventory, firewall: Firewall, names: Sequence[str]) -> Iterator[Finding]:
    """One whose rules could not be read, or where there is no cable that they could be looked up for."""
    if firewall.active is not True or firewall.input_policy == "accept":
        return
    if firewall.kind in ("nftables", "iptables") and firewall.input_policy is None:
        return
    drops = firewall.input_policy == "drop"
    what = f"The firewall {firewall.kind} is on"
    what += " and drops what no rule names." if drops else "; its rules may keep other hosts out."
    if firewall.chains is None and inventory.machine.system == "linux":
        what += " Only root can read them." if not drops else " Only root can read its rules."
    evidence = _evidence(inventory, firewall, drops=drops)
    severity: Severity = "warning" if drops and firewall.chains is not None else "note"
    cure = _open(inventory, firewall.kind, names)
    yield Finding("firewall", severity, firewall.kind, what, evidence, f"{_WHY}.", cure)


def _evidence(inventory: Inventory, firewall: Firewall, *, drops: bool) -> tuple[tuple[str, str], ...]:
    if firewall.kind == "macos":
        where = f"$ {FIREWALL}"
        lines = inventory.seen.get(where, "").strip().splitlines()
        return ((where, lines[0] if lines else "active"),)
    policy = next((one.policy_line for one in firewall.chains or () if one.hook and one.policy != "accept"), None)
    if drops and policy:
        return ((firewall.where, policy),)
    if drops and UFW_DEFAULTS in inventory.seen:
        lines = [line for line in inventory.seen[UFW_DEFAULTS].splitlines() if "DEFAULT_INPUT_POLICY" in line]
        return tuple((UFW_DEFAULTS, line) for line in lines[:1])
    return ((f"$ {SYSTEMCTL.split()[0]} is-active {firewall.kind}", "active"),)


def _open(inventory: Inventory, kind: str, names: Sequence[str]) -> tuple[Cure, ...]:
    """Cures that open a firewall; without interfaces of cables only, the machines in the subnet are trusted."""
    nets = [str(net) for one in inventory.netdevs if one.kind in CABLES for net in subnets(one) if net.version == 4]
    net = nets[0] if nets else "SUBNET"
    text = _TRUST if names else "Trust the other machines in this subnet, if they are all yours."
    match kind:
        case "firewalld":
            zone = "sudo firewall-cmd --permanent --zone=trusted"
            commands = [f"{zone} --change-interface={name}" for name in names] or [f"{zone} --add-source={net}"]
            return run(text, *commands, "sudo firewall-cmd --reload")
        case "ufw":
            rules = [f"sudo ufw insert 1 allow in on {name}" for name in names]
            return run(text, *(rules or [f"sudo ufw allow from {net}"]))
        case "macos":
            return by_hand("System Settings, Network, Firewall, Options: allow python3 to receive connections.")
        case _:
            chain = "sudo nft insert rule inet filter input"
            if not names:
                return run(text, f"{chain} ip saddr {net} accept")
            rules = [f"{chain} iifname {name} accept" for name in names]
            return run(f"{text} (The names of table and chain may differ: `sudo nft list chains`.)", *rules)
