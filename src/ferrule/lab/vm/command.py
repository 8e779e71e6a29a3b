"""The commands of `ferrule lab vm run`: the peer's name and address in them, and defaults for some programs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.errors import ConfigError
from ferrule.lab.vm.wiring import Wiring

_LONE = {
    "ping": ("ping -c 5 {peer}", ""),
    "iperf3": ("iperf3 -c {peer} -t 5", "iperf3 -s -1"),
}
"""Programs that need arguments: those that they get without any, on the host and on its peer."""

_PERFTEST = {f"ib_{operation}_{what}" for operation in ("send", "write", "read") for what in ("lat", "bw")}
_ON_DEVICE = "-F -u 18 -x 1 -d $(lab-cables device)"
"""With a timeout for guests without KVM, by the GID of an IPv4 address."""


@dataclass(frozen=True)
class Job:
    """``script`` for the host; ``peer_script`` for the host ``peer``, empty for none; ``env``: what both find."""

    script: str
    peer: str
    peer_script: str
    env: dict[str, str]


def job(command: Sequence[str], host: str, wiring: Wiring, peer_command: str = "") -> Job:
    """Job that runs ``command`` on ``host``, and ``peer_command`` on its peer meanwhile.

    The peer is the host at the other end of the first cable. ``{peer}``, ``{peer_address}`` and ``{host}`` are replaced
    in both; programs find them as PEER, PEER_ADDRESS and FERRULE_HOST_ID. A lone ``ping``, ``iperf3`` or program of
    perftest goes to the peer. Raises `ConfigError` where there is no peer and one is asked for.
    """
    neighbours = wiring.neighbours(host)
    known = {"host": host}
    env = {"FERRULE_HOST_ID": host}
    if neighbours:
        known |= {"peer": neighbours[0].host, "peer_address": neighbours[0].address}
        env |= {"PEER": neighbours[0].host, "PEER_ADDRESS": neighbours[0].address}
    script = shlex.join(_fill(word, known) for word in command)
    if len(command) == 1 and not peer_command:
        whole, peer_command = _lone(command[0])
        script = _fill(whole, known) if whole else script
    other = _fill(peer_command, known)
    if other and not neighbours:
        raise ConfigError(f"{host} has no cable, and so no peer to run {peer_command!r} on")
    return Job(script, neighbours[0].host if neighbours else "", other, env)


def _lone(word: str) -> tuple[str, str]:
    if word in _PERFTEST:
        return f"{word} {_ON_DEVICE} {{peer}}", f"{word} {_ON_DEVICE}"
    return _LONE.get(word, ("", ""))


def _fill(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", value)
    if "{peer}" in text or "{peer_address}" in text:
        raise ConfigError(f"the host has no cable, and so no peer: {text}")
    return text
