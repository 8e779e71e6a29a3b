"""The machines at hand as a cluster: this one, and others over ssh.

Another machine is asked for what ``ferrule plan --device-json`` prints there, which is `report_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from socket import gethostname

import msgspec

from ferrule.errors import ConfigError, LinkError, PlanError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.fabric.join.hosts import RankHost, this_host
from ferrule.installation import missing, pip_install
from ferrule.links.remote import ask_ferrule
from ferrule.plan.cluster.local import pairs_of_host
from ferrule.plan.cluster.profile import Ends, join_rails
from ferrule.plan.cluster.rails import Sources
from ferrule.plan.cluster.spec import ClusterSpec, DeviceSpec
from ferrule.plan.device.benchmark import Figures
from ferrule.plan.device.measure import TIMEOUT, alike, device_from, free_now, measure_figures

REMOTE_COMMAND = "plan --device-json"
REMOTE_TIMEOUT = 180.0
"""Seconds for another machine: the first time it imports torch and measures."""
_BEGIN = '{"ferrule_device"'


class HostReport(msgspec.Struct, frozen=True, tag_field="ferrule_device", tag=1):
    """A machine as a device, and its interfaces. ``notes``: on how it was measured. ``others``: more of its devices,
    each with a name of its own or all named alike. The tag is the format's version."""

    device: DeviceSpec
    host: RankHost
    notes: tuple[str, ...] = ()
    others: tuple[DeviceSpec, ...] = ()

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """All of them, each with a name of its own."""
        if not any(other.name == self.device.name for other in self.others):
            return (self.device, *self.others)
        name = self.device.name
        return tuple(
            replace(one, name=f"{name}-{number}", host=name) for number, one in enumerate((self.device, *self.others))
        )


def own_report(*, rank: str, fresh: bool = False) -> HostReport:
    """This machine. ``rank``, ``fresh`` and errors: those of `measure_figures`."""
    host = described_host()
    figures = measure_figures(rank=rank, fresh=fresh)
    device, *others = (device_from(one, host.host, free_now(one)) for one in _of_kind(figures, rank=rank, fresh=fresh))
    notes = [*figures.notes]
    if missing("engine"):
        notes.append(f"it cannot run models yet; on it: {pip_install('engine')}")
    return HostReport(device, host, tuple(f"{host.host}: {note}" for note in notes), tuple(others))


def described_host() -> RankHost:
    """This machine and its interfaces."""
    return replace(this_host("auto"), interfaces=own_interfaces())


def _of_kind(
    figures: Figures, *, rank: str, threads: int | None = None, fresh: bool = False, timeout: float = TIMEOUT
) -> list[Figures]:
    """Those of all devices here of the kind that was measured, which comes first."""
    unlike = (
        measure_figures(rank=rank, unit=unit, threads=threads, fresh=fresh, timeout=timeout) for unit in figures.unlike
    )
    return [*alike(figures), *unlike]


def devices_here(
    unit: str, *, rank: str, threads: int | None = None, timeout: float = TIMEOUT
) -> tuple[DeviceSpec, ...]:
    """Devices of this machine that ``unit`` means, named as units are: "cuda:1" is one, "cuda" all of that kind.
    ``rank``, ``threads``, ``timeout`` and errors: those of `measure_figures`."""
    figures = measure_figures(rank=rank, unit=unit, threads=threads, timeout=timeout)
    found = [figures] if ":" in unit else _of_kind(figures, rank=rank, threads=threads, timeout=timeout)
    return tuple(replace(device_from(one, one.unit, free_now(one)), host=gethostname()) for one in found)


def report_text(*, rank: str, fresh: bool = False) -> str:
    """Text that ``ferrule plan --device-json`` prints: `own_report` in one line of JSON."""
    return msgspec.json.encode(own_report(rank=rank, fresh=fresh)).decode()


def parse_report(text: str, origin: str) -> HostReport:
    """Read `report_text`, also below the greeting of a login script. Raises `LinkError`; ``origin``: for that."""
    begin = text.find(_BEGIN)
    try:
        return msgspec.json.decode(text[begin:].partition("\n")[0] if begin >= 0 else "", type=HostReport)
    except (msgspec.DecodeError, PlanError) as error:
        raise LinkError(
            f"{origin} described its device in a way that cannot be read ({error}); it must have the same version of "
            f"Ferrule as here"
        ) from error


def remote_report(host: str, *, command: str = "ferrule", timeout: float = REMOTE_TIMEOUT) -> HostReport:
    """``host`` as ssh knows it; ``command``: how Ferrule is called there. Raises `LinkError` with the cure."""
    late = f"describe its device within {timeout:g} s; try `ssh {host} {command} {REMOTE_COMMAND}`"
    told = ask_ferrule(host, command, REMOTE_COMMAND, REMOTE_COMMAND, timeout, late=late)
    return parse_report(told.decode(errors="replace"), host)


def live_cluster(
    hosts: Sequence[str] = (),
    *,
    rank: str,
    fresh: bool = False,
    command: str = "ferrule",
    sources: Sources | None = None,
) -> ClusterSpec:
    """This machine and the ``hosts``, as for ssh; see `remote_report`. ``rank``, ``fresh``: those of `measure_figures`.

    Raises `LinkError` where one cannot be asked, `PlanError` where this one cannot be measured.
    """
    reports = [own_report(rank=rank, fresh=fresh), *(remote_report(host, command=command) for host in hosts)]
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
        for here, there in product(one.devices, other.devices):
            rails += [((here.name, there.name), here.staged(there.staged(rail))) for rail in found.rails]
        notes += found.notes
    devices = tuple(device for report in reports for device in report.devices)
    inside = [pair for report in reports for pair in pairs_of_host(report.devices)]
    return ClusterSpec(devices, (*join_rails(rails), *inside), notes=tuple(dict.fromkeys(notes)))
