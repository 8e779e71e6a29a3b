"""Output of `ferrule lab`: profiles and the state of labs, as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
from rich.table import Table

from ferrule.cli.output import new_table
from ferrule.hardware import CableProfile, LabProfile, Machine, Profiles
from ferrule.lab.netns.check import Check
from ferrule.lab.netns.status import LabStatus
from ferrule.units import format_rate, format_seconds


def profile_tables(profiles: Profiles) -> Iterator[Table]:
    """Labs, machines and cables, a table each."""
    labs = _table("lab", "what it is", "hosts", "cables")
    for lab in profiles.labs.values():
        labs.add_row(lab.name, lab.title, " ".join(lab.hosts), _wiring(lab))
    yield labs
    machines = _table("machine", "what it is", "memory\nGiB", "\nGB/s", "16 bit\nTFLOP/s", "busy\nW", "price\n$")
    for machine in profiles.machines.values():
        machines.add_row(
            machine.name,
            machine.title,
            f"{machine.memory.value / 2**30:.0f}",
            f"{machine.memory_bandwidth.value / 1e9:.0f}",
            f"{machine.half_precision.value / 1e12:.3g}",
            f"{machine.watts_busy.value:.0f}" if machine.watts_busy else "",
            f"{machine.price.value:,.0f}" if machine.price else "",
        )
    yield machines
    cables = _table("cable", "what it is", "rate", "delay", "more")
    for cable in profiles.cables.values():
        shaping = cable.shaping
        rest = shaping.describe("rate", "delay")
        cables.add_row(
            cable.name,
            cable.title,
            format_rate(shaping.rate) if shaping.rate else "any",
            format_seconds(shaping.delay),
            " ".join(filter(None, [rest, f"mtu={cable.mtu}" if cable.mtu else ""])),
        )
    yield cables


def lab_tables(status: LabStatus) -> Iterator[Table]:
    """A lab that is up: its hosts and its cables."""
    hosts = _table("host", "machine", "addresses", "programs")
    for host in status.hosts:
        hosts.add_row(host.name, host.machine, " ".join(host.addresses.values()), str(host.processes))
    yield hosts
    cables = _table("cable", "kind", "joins", "each way", "wrong with it")
    for cable in status.cables:
        limits = list(dict.fromkeys(end.text or "no limits" for end in cable.ends.values()))
        cables.add_row(cable.name, cable.kind, " ".join(cable.hosts), " / ".join(limits), "; ".join(cable.faults))
    yield cables


class JoinedJson(msgspec.Struct, frozen=True):
    """A cable of a lab, by its kind, and the two hosts that it joins."""

    cable: str
    hosts: tuple[str, ...]


class LabJson(msgspec.Struct, frozen=True):
    """A lab. ``hosts``: the machine that each is."""

    title: str
    hosts: dict[str, str]
    cables: tuple[JoinedJson, ...]


class ProfilesJson(msgspec.Struct, frozen=True):
    """Output of `ferrule lab profiles --json`, by name. ``cables``: ``title``, each of the figures that a profile has
    by its name, and their ``sources`` and ``urls``."""

    labs: dict[str, LabJson]
    machines: Mapping[str, Machine]
    cables: dict[str, dict[str, str | float | dict[str, str]]]


def profiles_json(profiles: Profiles) -> ProfilesJson:
    labs = {
        lab.name: LabJson(
            lab.title,
            dict(zip(lab.hosts, (machine.name for machine in lab.machines), strict=True)),
            tuple(JoinedJson(cable.name, tuple(lab.hosts[host] for host in ends)) for cable, ends in lab.cables),
        )
        for lab in profiles.labs.values()
    }
    return ProfilesJson(labs, profiles.machines, {name: _cable_json(cable) for name, cable in profiles.cables.items()})


def _cable_json(cable: CableProfile) -> dict[str, str | float | dict[str, str]]:
    return {
        "title": cable.title,
        **{name: figure.value for name, figure in cable.figures.items()},
        "sources": {name: figure.source for name, figure in cable.figures.items()},
        "urls": {name: figure.url for name, figure in cable.figures.items() if figure.url},
    }


def _wiring(lab: LabProfile) -> str:
    counts = Counter(cable.name for cable, _ in lab.cables)
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())


def _table(*columns: str) -> Table:
    first, *others = columns  # the first one has names, which one copies
    return new_table(f"!{first}", *others, padding=(0, 1), pad_edge=False)


def check_tables(found: Check) -> Iterator[Table]:
    """Tables of the shaper's cost on this machine, and of how well it holds what it is told."""
    costs = _table("without limits", "kernel", "shaper")
    costs.add_row("one packet, one way", format_seconds(found.kernel_delay), f"+ {format_seconds(found.added)}")
    costs.add_row("one TCP stream", format_rate(found.kernel_rate), format_rate(found.shaper_rate))
    yield costs
    held = _table("told", "measured", "error", "")
    for delay in found.delays:
        error = format_seconds(delay.measured - delay.wanted)
        held.add_row(format_seconds(delay.wanted), format_seconds(delay.measured), error, _verdict(delay.true))
    for rate in found.rates:
        carried = rate.wanted <= found.shaper_rate
        error = f"{(rate.measured / rate.wanted - 1) * 100:+.1f} %"
        verdict = _verdict(rate.true) if carried or rate.true else "more than this machine carries"
        held.add_row(format_rate(rate.wanted), format_rate(rate.measured), error, verdict)
    yield held
    faults = _table("fault", "acts after")
    for fault, seconds in found.faults:
        faults.add_row(fault, format_seconds(seconds))
    yield faults


def _verdict(true: bool) -> str:
    return "held" if true else "[red]not held[/red]"
