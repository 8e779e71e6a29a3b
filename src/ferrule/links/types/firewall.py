"""Packet filters: what they do with what comes in, as far as their rules can be read and understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["accept", "drop", "reject", "jump", "goto", "return", "continue"]
Policy = Literal["accept", "drop", "reject"]
MatchField = Literal["interface", "family", "protocol", "source", "destination", "port", "state", "kind", "other"]


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """One condition of a rule: ``field`` of a packet is one of ``values``, or none of them if ``negated``.

    ``interface``: where it came in, ``*`` or ``+`` at the end stands for anything. ``source``, ``destination``:
    addresses or networks. ``port``: of the destination, ``22`` or ``1000-2000``. ``state``: of the connection.
    ``kind``: who it is sent to, such as ``local`` or ``broadcast``. ``other``: anything that is not understood.
    """

    field: MatchField
    values: tuple[str, ...] = ()
    negated: bool = False


@dataclass(frozen=True, slots=True)
class FirewallRule:
    """``line``: the rule as its program writes it. ``target``: the chain of a ``jump`` or ``goto``."""

    line: str
    verdict: Verdict
    matches: tuple[RuleMatch, ...] = ()
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FirewallChain:
    """``name``: as its program needs it, such as ``inet filter input``. ``hook``: where packets enter; None if only
    other chains lead here. ``policy``: for what no rule decides, and ``policy_line`` where it is said. ``netdevs``: of
    which it gets packets; all if empty.
    """

    name: str
    rules: tuple[FirewallRule, ...] = ()
    hook: str | None = None
    priority: int = 0
    policy: Policy = "accept"
    policy_line: str = ""
    netdevs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Firewall:
    """``kind``: such as ``firewalld``, ``ufw``, ``nftables``, ``iptables``, ``macos``. ``active``: None if that could
    not be read.

    ``input_policy``: what happens to incoming packets that no rule names: ``accept`` or ``drop``. ``chains``: its
    rules; None if they could not be read. ``where``: the command or file that told them.
    """

    kind: str
    active: bool | None = None
    input_policy: str | None = None
    chains: tuple[FirewallChain, ...] | None = None
    where: str = ""
