"""A cluster in TOML, that a user writes to ask "what if", or edits after it was saved.

::

    [[device]]
    name = "strix"                # strix-1 and strix-2; without a count just strix
    count = 2
    machine = "strix-halo"        # what ships with `ferrule lab profiles`, as far as nothing else is said here
    memory = "120 GiB"            # that a model may fill
    memory_bandwidth = "215 GB/s" # that reading gets, about 0.85 of what a maker states

    [[link]]
    between = ["strix-1", "strix-2"]  # or mesh = [...], a cable between any two, or switch = [...]
    cable = "usb4-40g"                # and/or latency = "9us", bandwidth = "10 Gb/s", transport = "tcp"
    count = 2                         # that many cables

    [[route]]                     # if the way is to be checked that messages take between two without a cable
    from = "strix-1"
    to = "strix-4"
    via = ["strix-2", "strix-3"]
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import msgspec

from ferrule.errors import ConfigError, PlanError
from ferrule.fabric.routing.routes import find_routes
from ferrule.files import write_whole
from ferrule.hardware import CableProfile, Machine, Profiles, shipped
from ferrule.plan.cluster.profile import Ends, device_of, is_apple, join_rails, rail_of, too_full
from ferrule.plan.cluster.spec import CORES_KEEP, ClusterSpec, DeviceSpec, RailSpec
from ferrule.plan.cluster.tables import EXAMPLES, MAX_DEVICES, Device, Link, Quantity, Route, Whole, shown

_MAX_RAILS = 1 << 20
_MAX_BYTES = 128 << 20
_NEEDED = ("memory", "memory_bandwidth", "flops")
"""Of a device that is no known machine."""
_OF_HOSTS = ("host", "device", "maker")
"""Fields of `Device` that are left out where nothing is known of them."""
_NOT_OF_SPEC = ("count", "machine")
"""Fields of `Device` that `DeviceSpec` has not."""


def read_cluster(path: Path | str) -> ClusterSpec:
    """The cluster that the file describes. Raises `ConfigError` and `PlanError`: where, what, and what would do."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path} is larger than {_MAX_BYTES >> 20} MiB; plan for fewer devices or cables")
    return parse_cluster(text, str(path))


def parse_cluster(text: str, origin: str = "cluster.toml") -> ClusterSpec:
    """The same from the file's text. ``origin``: its name, for errors."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{origin} is not TOML: {error}") from None
    whole = Whole.read(data, origin)
    known = _profiles()
    devices: dict[str, DeviceSpec] = {}
    machines: dict[str, Machine] = {}
    for number, entry in enumerate(whole.device, 1):
        for device, machine in _devices(entry, number, origin, known):
            if device.name in devices:
                raise ConfigError(f"{origin}: two devices are called {device.name!r}; give each a name of its own")
            devices[device.name] = device
            if machine is not None:
                machines[device.name] = machine
        if len(devices) > MAX_DEVICES:
            raise ConfigError(f"{origin}: a cluster has at most {MAX_DEVICES} devices; plan for fewer")
    if not devices:
        raise ConfigError(f"{origin}: the cluster has no devices; write [[device]] with name, memory and so on")
    rails: list[Ends] = []
    for number, entry in enumerate(whole.link, 1):
        rails += _rails(entry, f"{origin}, [[link]] {number}", devices, machines, known)
        if len(rails) > _MAX_RAILS:
            raise ConfigError(f"{origin}: there are more than {_MAX_RAILS} cables; plan for fewer devices or cables")
    kept = {name: _plain(value) for name in CORES_KEEP if (value := getattr(whole, name)) is not None}
    try:
        told = (too_full(devices[name], machine) for name, machine in machines.items())
        notes = tuple(dict.fromkeys((*whole.notes, *(note for note in told if note))))
        cluster = ClusterSpec(tuple(devices.values()), join_rails(rails), whole.cores, notes, **kept)
    except PlanError as error:
        raise PlanError(f"{origin}: {error}") from None
    routes = [_route(entry, f"{origin}, [[route]] {number}", cluster) for number, entry in enumerate(whole.route, 1)]
    return replace(cluster, notes=(*cluster.notes, *_other_routes(cluster, routes))) if routes else cluster


def write_cluster(cluster: ClusterSpec, path: Path | str) -> None:
    """Save it for `read_cluster`. Raises `ConfigError` where the file cannot be."""
    try:
        write_whole(Path(path), format_cluster(cluster))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the cluster file {path}: {error}") from None


def format_cluster(cluster: ClusterSpec) -> str:
    """The file's text: what `parse_cluster` makes the same cluster of."""
    lines = [] if cluster.cores is None else [f"cores = {cluster.cores}"]
    for name, default in zip(CORES_KEEP, (1.0, None, 1.0), strict=True):
        if (value := getattr(cluster, name)) != default:
            lines.append(f"{name} = {value!r}")
    if cluster.notes:
        lines.append(f"notes = {_value(cluster.notes)}")
    for device in cluster.devices:
        lines += ["", "[[device]]"]
        for field in msgspec.structs.fields(Device):
            value = getattr(device, field.name, None)
            if value is not None and value is not False and not (value == "" and field.name in _OF_HOSTS):
                lines.append(f"{field.encode_name} = {_value(value)}")
    for pair in cluster.pairs:
        for rail in pair.rails:
            lines += [
                "",
                "[[link]]",
                f"between = {_value(pair.between)}",
                f"name = {_value(rail.name)}",
                f"latency = {_value(rail.alpha)}  # seconds",
                f"bandwidth = {_value(rail.bandwidth * 8)}  # bits per second",
                f"transport = {_value(rail.transport)}",
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _value(value: Any) -> str:
    """As TOML writes it. Its basic strings are those of JSON, but for what no text of ours holds."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(one)}' for key, one in value.items())} }}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


@cache
def _profiles() -> Profiles:
    return shipped()


def _devices(
    entry: Mapping[str, Any], number: int, origin: str, known: Profiles
) -> list[tuple[DeviceSpec, Machine | None]]:
    name = entry.get("name")
    where = f"{origin}, [[device]] {name if isinstance(name, str) else number}"
    table = Device.read(entry, where)
    machine = None if table.machine is None else _known(table.machine, "machine", known.machines, where)
    given = msgspec.structs.asdict(table)
    told = {key: _plain(value) for key, value in given.items() if value is not None and key not in _NOT_OF_SPEC}
    for key in ("memory", "runtime_bytes"):
        if key in told:
            told[key] = max(int(key == "memory"), int(told[key]))
    if machine is not None:
        base = device_of(machine, table.name)
        spec = replace(base, **told | {"flops": {**base.flops, **told.get("flops", {})}})
    else:
        for key in _NEEDED:
            if key not in told:
                raise ConfigError(
                    f"{where}: {key} is missing; write {key} = {EXAMPLES[key]}, or machine = NAME of one that "
                    f"`ferrule lab profiles` lists"
                )
        told.setdefault("kind", table.name)
        spec = DeviceSpec(**told)
    if table.count is None:
        return [(spec, machine)]
    return [(replace(spec, name=f"{table.name}-{place}"), machine) for place in range(1, table.count + 1)]


def _rails(
    entry: Mapping[str, Any],
    where: str,
    devices: Collection[str],
    machines: Mapping[str, Machine],
    known: Profiles,
) -> list[Ends]:
    table = Link.read(entry, where)
    joined = [(key, ends) for key in ("between", "mesh", "switch") if (ends := getattr(table, key)) is not None]
    if len(joined) != 1:
        raise ConfigError(f"{where}: each link needs one of between, mesh or switch, with names of devices")
    ((key, ends),) = joined
    _check_names(ends, f"{where}, {key}", devices)
    cable = None if table.cable is None else _known(table.cable, "cable", known.cables, where)
    if cable is None and (table.latency is None or table.bandwidth is None):
        missing = "latency" if table.latency is None else "bandwidth"
        raise ConfigError(
            f"{where}: {missing} is missing; write {missing} = {EXAMPLES[missing]}, or cable = NAME of one that "
            f"`ferrule lab profiles` lists"
        )
    kinds = [_rail(table, cable, apple=apple) for apple in (False, True)]
    apples = {end for end in ends if end in machines and is_apple(machines[end])}
    rails: list[Ends] = []
    for pair in combinations(ends, 2):
        rails += [(pair, kinds[not apples.isdisjoint(pair)])] * table.count
    return rails


def _rail(table: Link, cable: CableProfile | None, *, apple: bool) -> RailSpec:
    transport = None if table.transport is None else str(table.transport)
    known = None if cable is None else rail_of(cable, apple=apple, transport=transport)
    base = known or RailSpec("cable", 0.0, 1.0, transport or RailSpec.transport)
    return replace(
        base,
        name=table.name or base.name,
        alpha=base.alpha if table.latency is None else float(table.latency),
        bandwidth=base.bandwidth if table.bandwidth is None else table.bandwidth / 8,
    )


def _plain(value: Any) -> Any:
    """Without the types of this file, which no encoder knows."""
    if isinstance(value, dict):
        return {key: float(one) for key, one in value.items()}
    if isinstance(value, str):
        return str(value)
    return float(value) if isinstance(value, Quantity) else value


def _known(name: str, key: str, known: Mapping[str, Any], where: str) -> Any:
    if name not in known:
        raise ConfigError(f"{where}, {key}: there is no {key} {shown(name)}; known are {', '.join(known)}")
    return known[name]


def _check_names(names: Sequence[str], where: str, known: Collection[str]) -> None:
    """Different names, each of a known device."""
    for name in names:
        if name not in known:
            several = [one for one in known if one.startswith(f"{name}-")][:1]
            hint = f"; with a count its first one is {several[0]!r}" if several else ""
            raise ConfigError(f"{where}: there is no device {shown(name)}, only {some(known)}{hint}")
        if names.count(name) > 1:
            raise ConfigError(f"{where}: {shown(name)} is there twice; a message that comes back goes in a circle")


def some(names: Collection[str]) -> str:
    """The first few of them."""
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


def _route(entry: Mapping[str, Any], where: str, cluster: ClusterSpec) -> tuple[str, ...]:
    """All devices on the path, both ends included."""
    table = Route.read(entry, where)
    known = cluster.by_name
    for key, names in (("from", [table.origin]), ("to", [table.to]), ("via", table.via)):
        _check_names(names, f"{where}, {key}", known)
    ends = (table.origin, table.to)
    path = (ends[0], *table.via, ends[1])
    for name in path:
        if path.count(name) > 1:
            raise ConfigError(f"{where}: the route passes {name} twice: {' → '.join(path)}; leave out the circle")
    if cluster.pair(*ends) is not None:
        raise ConfigError(f"{where}: {ends[0]} and {ends[1]} share a link, so messages need no route; leave it out")
    for one, other in pairwise(path):
        if cluster.pair(one, other) is None:
            joined = [name for name in known if cluster.pair(one, name) is not None]
            raise ConfigError(
                f"{where}, via: {one} and {other} share no link; "
                + (f"{one} has links to {some(joined)}" if joined else f"add a [[link]] between {one} and another")
            )
    return path


def _other_routes(cluster: ClusterSpec, routes: Sequence[Sequence[str]]) -> list[str]:
    """A note for each route that the fabric, which takes the cheapest one, would not take."""
    names = tuple(cluster.by_name)
    place = {name: number for number, name in enumerate(names)}
    linked = [(min(ends), max(ends)) for ends in (tuple(place[end] for end in pair.between) for pair in cluster.pairs)]
    found = find_routes(linked, names, cluster.costs(names))
    notes = []
    for route in routes:
        one, other = place[route[0]], place[route[-1]]
        passed = [names[number] for number in found[max(one, other), min(one, other)]]
        taken = passed if one > other else passed[::-1]
        if taken != list(route[1:-1]):
            cheapest = " → ".join((route[0], *taken, route[-1]))
            notes.append(f"route {' → '.join(route)}: the fabric takes the cheapest one, {cheapest}")
    return notes
