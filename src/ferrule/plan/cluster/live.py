"""The machines at hand as a cluster: this one, others over ssh, and labs.

Another machine is asked for what ``ferrule plan --device-json`` prints there, which is `report_text`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple, Self

from ferrule.errors import ConfigError, LinkError, PlanError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.fabric.join.hosts import RankHost, this_host
from ferrule.lab import Lab, Shaping
from ferrule.lab.netns import control
from ferrule.links.remote import ask_ferrule
from ferrule.plan.cluster.profile import Ends, join_rails, shaped_rail
from ferrule.plan.cluster.rails import Sources
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec, RailSpec
from ferrule.plan.device.contention import ALL_KEPT, CoresTogether
from ferrule.plan.device.measure import device_from, free_now, measure_device, measure_figures
from ferrule.process import usable_cores

REMOTE_WORDS = "plan --device-json"
REMOTE_TIMEOUT = 180.0
"""Seconds for another machine: the first time it imports torch and measures."""
_BEGIN = '{"ferrule_device"'
_VERSION = 1
UNSHAPED_RATE = 20e9
"""Bits per second of an emulated cable without a rate, which is as fast as this machine copies: typical."""

EMULATED_SECONDS = 13e-6
"""What the bridge and the shaper between two emulated hosts add to a message, one way: measured."""


class _Emulated(NamedTuple):
    """A cable of a lab between ``hosts``, those whose plugs are in."""

    name: str
    hosts: tuple[str, ...]
    shaping: Shaping
    mtu: int


@dataclass(frozen=True)
class HostReport:
    """A machine as a device, and its interfaces. ``notes``: on how it was measured."""

    device: DeviceSpec
    host: RankHost
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"device": asdict(self.device), "host": self.host.to_json(), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Raises `ValueError`, `KeyError`, `TypeError`, `AttributeError` or `PlanError` for anything that `to_json`
        would not have made."""
        device = DeviceSpec(**fields["device"])
        return cls(device, RankHost.from_json(fields["host"]), tuple(map(str, fields["notes"])))


def own_report(**options: Any) -> HostReport:
    """This machine. ``options`` and errors are those of `measure_figures`."""
    host = replace(this_host("auto"), interfaces=own_interfaces())
    figures = measure_figures(**options)
    device = device_from(figures, host.host, free_now(figures))
    return HostReport(device, host, tuple(f"{host.host}: {note}" for note in figures.notes))


def report_text(**options: Any) -> str:
    """What ``ferrule plan --device-json`` prints: `own_report` in one line of JSON."""
    return json.dumps({"ferrule_device": _VERSION, **own_report(**options).to_json()})


def parse_report(text: str, origin: str) -> HostReport:
    """Read `report_text`, also below the greeting of a login script. Raises `LinkError`; ``origin``: for that."""
    begin = text.find(_BEGIN)
    try:
        fields = json.loads(text[begin:].splitlines()[0]) if begin >= 0 else {}
        if fields.get("ferrule_device") != _VERSION:
            raise LinkError(f"{origin} did not describe its device; it must have the same version of Ferrule as here")
        return HostReport.from_json(fields)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, PlanError) as error:
        raise LinkError(
            f"{origin} described its device in a way that cannot be read ({error}); it must have the same version of "
            f"Ferrule as here"
        ) from error


def remote_report(host: str, *, command: str = "ferrule", timeout: float = REMOTE_TIMEOUT) -> HostReport:
    """``host`` as ssh knows it; ``command``: how Ferrule is called there. Raises `LinkError` with the cure."""
    late = f"describe its device within {timeout:g} s; try `ssh {host} {command} {REMOTE_WORDS}`"
    told = ask_ferrule(host, command, REMOTE_WORDS, REMOTE_WORDS, timeout, late=late)
    return parse_report(told.decode(errors="replace"), host)


def live_cluster(
    hosts: Sequence[str] = (),
    *,
    command: str = "ferrule",
    timeout: float = REMOTE_TIMEOUT,
    sources: Sources | None = None,
    **options: Any,
) -> ClusterSpec:
    """This machine and the ``hosts``, as for ssh; see `remote_report`, and for ``options`` `measure_figures`.

    Raises `LinkError` where one cannot be asked, `PlanError` where this one cannot be measured.
    """
    reports = [own_report(**options), *(remote_report(host, command=command, timeout=timeout) for host in hosts)]
    return cluster_of_reports(reports, sources or Sources.of_this_machine())


def cluster_of_reports(reports: Sequence[HostReport], sources: Sources) -> ClusterSpec:
    """Machines that described themselves, and what is known of the links between any two. Raises `ConfigError` where
    two of them are one or have one name."""
    for one, other in combinations(reports, 2):
        if one.host.memory_id == other.host.memory_id:
            raise ConfigError(f"{one.device.name} and {other.device.name} are the same machine; name it once")
        if one.device.name == other.device.name:
            raise ConfigError(
                f"two machines call themselves {one.device.name!r}; give one another name: hostnamectl hostname NAME"
            )
    rails: list[Ends] = []
    notes = [note for report in reports for note in report.notes]
    for one, other in combinations(reports, 2):
        found = sources.between(one.host, other.host)
        rails += [((one.device.name, other.device.name), rail) for rail in found.rails]
        notes += found.notes
    return ClusterSpec(tuple(report.device for report in reports), join_rails(rails), notes=tuple(dict.fromkeys(notes)))


def cluster_of_lab(
    lab: Lab, *, device: DeviceSpec | None = None, threads: int | None = None, **options: Any
) -> ClusterSpec:
    """The hosts of a lab: each is this machine with its part of the memory, and they share its cores. Cables are as
    they are now, with faults; those that are cut or dark are not there.

    ``device``: this machine, if known; else it is measured, with the ``threads`` that a rank has, by default its part
    of the cores, and with all cores at work. ``options``: of `measure_figures`.
    """
    cables = [
        _Emulated(
            cable.interface,
            tuple(lab.name(host) for host in cable.hosts if cable.state(host) == "up"),
            cable.shaping(cable.hosts[0]),
            cable.mtu,
        )
        for cable in lab.cables
    ]
    return _emulated(lab.names, cables, device, threads, options)


def cluster_of_standing_lab(
    name: str, *, device: DeviceSpec | None = None, threads: int | None = None, **options: Any
) -> ClusterSpec:
    """The same of a lab that `ferrule lab up` started. Raises `LabError`."""
    status = control.ask(name, "status")
    cables = [
        _Emulated(
            cable["name"],
            tuple(host for host in cable["hosts"] if cable["ends"][host]["state"] == "up"),
            Shaping(**cable["ends"][cable["hosts"][0]]["shaping"]),
            cable["mtu"],
        )
        for cable in status["cables"]
    ]
    return _emulated([host["name"] for host in status["hosts"]], cables, device, threads, options)


def emulated_rail(name: str, shaping: Shaping, *, mtu: int | None = None) -> RailSpec:
    """A lab's cable of this shape."""
    shaping = shaping if shaping.rate is not None else replace(shaping, rate=UNSHAPED_RATE)
    rail = shaped_rail(name, shaping, "tcp", mtu=mtu)
    return replace(rail, alpha=rail.alpha + EMULATED_SECONDS)


def _emulated(
    names: Sequence[str],
    cables: Sequence[_Emulated],
    device: DeviceSpec | None,
    threads: int | None,
    options: Mapping[str, Any],
) -> ClusterSpec:
    cores = usable_cores()
    kept = ALL_KEPT
    if device is None:
        with CoresTogether(len(names)) as measured:
            kept = measured.measure()
        device = measure_device(threads=threads or max(1, cores // len(names)), **options)
    memory = device.memory // len(names)
    devices = tuple(replace(device, name=name, memory=memory) for name in names)
    rails: list[Ends] = []
    for cable in cables:
        rail = emulated_rail(cable.name, cable.shaping, mtu=cable.mtu)
        rails += [(pair, rail) for pair in combinations(cable.hosts, 2)]
    note = f"emulated on this machine: {len(names)} hosts share its {cores} cores and its memory"
    return ClusterSpec(devices, join_rails(rails), cores, (note,), **kept.named())
