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
from dataclasses import fields, replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from ferrule.config import TRANSPORT_CHOICES
from ferrule.errors import ConfigError, PlanError
from ferrule.fabric.routing.routes import find_routes
from ferrule.files import write_whole
from ferrule.hardware import CableProfile, Machine, Profiles, shipped
from ferrule.plan.cluster.fields import (
    BYTES,
    BYTES_PER_SECOND,
    DOLLARS,
    FLOPS,
    PART,
    RATE,
    SECONDS,
    WATTS,
    Table,
    shown,
    some,
    tables,
)
from ferrule.plan.cluster.profile import Ends, device_of, is_apple, join_rails, rail_of
from ferrule.plan.cluster.spec import CORES_KEEP, ClusterSpec, DeviceSpec, RailSpec

MAX_DEVICES = 1024
MAX_CORES = 1 << 16
_MAX_CABLES = 64
_MAX_RAILS = 1 << 20
_MAX_BYTES = 128 << 20
_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")
_DEVICE = (
    "name",
    "count",
    "machine",
    "kind",
    "memory",
    "memory_bandwidth",
    "flops",
    "launch",
    "resume",
    "eager",
    "disk_read",
    "runtime",
    "watts_idle",
    "watts_busy",
    "price",
    "measured",
)
_LINK = ("between", "mesh", "switch", "name", "cable", "latency", "bandwidth", "transport", "count")
_TRANSPORTS = tuple(choice for choice in TRANSPORT_CHOICES if choice != "auto")
_FLOPS_EXAMPLE = "{ bf16 = 59e12 }"
Rails = list[Ends]


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
    whole = Table(data, origin, ("device", "link", "route", "cores", *CORES_KEEP, "notes"))
    known = _profiles()
    devices: dict[str, DeviceSpec] = {}
    machines: dict[str, Machine] = {}
    for number, entry in enumerate(tables(data, "device", origin), 1):
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
    rails: Rails = []
    for number, entry in enumerate(tables(data, "link", origin), 1):
        rails += _rails(entry, f"{origin}, [[link]] {number}", devices, machines, known)
        if len(rails) > _MAX_RAILS:
            raise ConfigError(f"{origin}: there are more than {_MAX_RAILS} cables; plan for fewer devices or cables")
    cores = whole.count("cores", MAX_CORES)
    kept = {name: value for name in CORES_KEEP if (value := whole.number(name, PART)) is not None}
    try:
        cluster = ClusterSpec(tuple(devices.values()), join_rails(rails), cores, _notes(whole), **kept)
    except PlanError as error:
        raise PlanError(f"{origin}: {error}") from None
    routes = [
        _route(entry, f"{origin}, [[route]] {number}", cluster)
        for number, entry in enumerate(tables(data, "route", origin), 1)
    ]
    return replace(cluster, notes=(*cluster.notes, *_other_routes(cluster, routes))) if routes else cluster


def write_cluster(cluster: ClusterSpec, path: Path | str) -> None:
    """Save it for `read_cluster`. Raises `ConfigError` where the file cannot be."""
    try:
        write_whole(Path(path), format_cluster(cluster))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the cluster file {path}: {error}") from None


def format_cluster(cluster: ClusterSpec) -> str:
    """The file's text: what `parse_cluster` makes the same cluster of."""
    lines = []
    if cluster.cores is not None:
        lines.append(f"cores = {cluster.cores}")
    for each in fields(cluster):
        if each.name in CORES_KEEP and (value := getattr(cluster, each.name)) != each.default:
            lines.append(f"{each.name} = {value!r}")
    if cluster.notes:
        lines.append(f"notes = [{', '.join(map(_quoted, cluster.notes))}]")
    for device in cluster.devices:
        lines += ["", "[[device]]", *_device_lines(device)]
    for link in cluster.links:
        for rail in link.rails:
            lines += [
                "",
                "[[link]]",
                f"between = [{', '.join(map(_quoted, link.between))}]",
                f"name = {_quoted(rail.name)}",
                f"latency = {_number(rail.alpha)}  # seconds",
                f"bandwidth = {_number(rail.bandwidth * 8)}  # bits per second",
                f"transport = {_quoted(rail.transport)}",
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _device_lines(device: DeviceSpec) -> list[str]:
    flops = ", ".join(f"{dtype} = {_number(value)}" for dtype, value in device.flops.items())
    lines = [
        f"name = {_quoted(device.name)}",
        f"kind = {_quoted(device.kind)}",
        f"memory = {device.memory}  # bytes",
        f"memory_bandwidth = {_number(device.memory_bandwidth)}  # bytes per second",
        f"flops = {{ {flops} }}",
        f"launch = {_number(device.launch_seconds)}  # seconds",
    ]
    for name, value in (
        ("eager", device.eager_seconds),
        ("resume", device.resume_seconds or None),
        ("disk_read", device.disk_read),
        ("runtime", device.runtime_bytes or None),
        ("watts_idle", device.watts_idle),
        ("watts_busy", device.watts_busy),
        ("price", device.price),
    ):
        if value is not None:
            lines.append(f"{name} = {_number(value)}")
    return [*lines, *(["measured = true"] if device.measured else [])]


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def _quoted(text: str) -> str:
    """A basic string of TOML: that of JSON, but for what no text of ours holds."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@cache
def _profiles() -> Profiles:
    return shipped()


def _devices(
    entry: Mapping[str, Any], number: int, origin: str, known: Profiles
) -> list[tuple[DeviceSpec, Machine | None]]:
    name = entry.get("name")
    table = Table(entry, f"{origin}, [[device]] {name if isinstance(name, str) else number}", _DEVICE)
    stem = table.text("name", '"strix"')
    machine = _known(table, "machine", known.machines) if "machine" in table else None
    base = device_of(machine, stem) if machine is not None else None
    memory = table.number("memory", BYTES)
    bandwidth = table.number("memory_bandwidth", BYTES_PER_SECOND)
    flops = table.numbers("flops", FLOPS, _FLOPS_EXAMPLE)
    for dtype in flops or ():
        if dtype not in _DTYPES:
            raise table.error("flops", f"there is no type {shown(dtype)}; there are {', '.join(_DTYPES)}")
    if base is None:
        for key, value, example in (
            ("memory", memory, BYTES.example),
            ("memory_bandwidth", bandwidth, BYTES_PER_SECOND.example),
            ("flops", flops, _FLOPS_EXAMPLE),
        ):
            if value is None:
                raise ConfigError(
                    f"{table.where}: {key} is missing; write {key} = {example}, or machine = NAME of one that "
                    f"`ferrule lab profiles` lists"
                )
    fields: dict[str, Any] = {
        "name": stem,
        "kind": _kind(table, machine.name if machine is not None else stem),
        "memory": None if memory is None else max(1, int(memory)),
        "memory_bandwidth": bandwidth,
        "flops": {**(base.flops if base is not None else {}), **flops} if flops else None,
        "launch_seconds": table.number("launch", SECONDS, least=0),
        "eager_seconds": table.number("eager", SECONDS, least=0),
        "resume_seconds": table.number("resume", SECONDS, least=0),
        "disk_read": table.number("disk_read", BYTES_PER_SECOND),
        "runtime_bytes": _whole(table.number("runtime", BYTES, least=0)),
        "watts_idle": table.number("watts_idle", WATTS, least=0),
        "watts_busy": table.number("watts_busy", WATTS, least=0),
        "price": table.number("price", DOLLARS, least=0),
    }
    told = {key: value for key, value in fields.items() if value is not None}
    measured = table.flag("measured")
    spec = replace(base, measured=measured, **told) if base is not None else DeviceSpec(measured=measured, **told)
    count = table.count("count", MAX_DEVICES)
    names = [stem] if count is None else [f"{stem}-{number}" for number in range(1, count + 1)]
    return [(replace(spec, name=name), machine) for name in names]


def _kind(table: Table, default: str) -> str:
    return "" if table.data.get("kind") == "" else table.text("kind", '"my-box"', default=default)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _rails(
    entry: Mapping[str, Any],
    where: str,
    devices: Collection[str],
    machines: Mapping[str, Machine],
    known: Profiles,
) -> Rails:
    table = Table(entry, where, _LINK)
    ways = [way for way in ("between", "mesh", "switch") if way in table]
    if len(ways) != 1:
        raise ConfigError(f"{where}: each link needs one of between, mesh or switch, with names of devices")
    ends = table.names(ways[0], devices, 2, 2 if ways[0] == "between" else None)
    cable = _known(table, "cable", known.cables) if "cable" in table else None
    transport = table.text("transport", '"tcp"', default=cable.transport if cable is not None else "tcp")
    if transport not in _TRANSPORTS:
        raise table.error("transport", f"{shown(transport)} is none; there are {', '.join(_TRANSPORTS)}")
    latency, rate = table.number("latency", SECONDS, least=0), table.number("bandwidth", RATE)
    if cable is None and (latency is None or rate is None):
        missing, example = ("latency", SECONDS.example) if latency is None else ("bandwidth", RATE.example)
        raise ConfigError(
            f"{where}: {missing} is missing; write {missing} = {example}, or cable = NAME of one that "
            f"`ferrule lab profiles` lists"
        )
    name = table.text("name", '"usb4"', default=cable.name if cable is not None else "cable")
    count = table.count("count", _MAX_CABLES) or 1
    kinds = [_rail(name, cable, transport, apple, latency, rate) for apple in (False, True)]
    apples = {end for end in ends if end in machines and is_apple(machines[end])}
    rails: Rails = []
    for pair in combinations(ends, 2):
        rails += [(pair, kinds[not apples.isdisjoint(pair)])] * count
    return rails


def _rail(
    name: str, cable: CableProfile | None, transport: str, apple: bool, latency: float | None, rate: float | None
) -> RailSpec:
    if cable is None:
        assert latency is not None
        assert rate is not None
        return RailSpec(name, latency, rate / 8, transport)
    rail = rail_of(cable, apple=apple, transport=transport)
    return RailSpec(
        name,
        rail.alpha if latency is None else latency,
        rail.bandwidth if rate is None else rate / 8,
        transport,
    )


def _known(table: Table, key: str, known: Mapping[str, Any]) -> Any:
    name = table.text(key, f'"{next(iter(known))}"')
    if name not in known:
        raise table.error(key, f"there is no {key} {shown(name)}; known are {', '.join(known)}")
    return known[name]


def _notes(table: Table) -> tuple[str, ...]:
    notes = table.data.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise table.error("notes", 'write lines of text: notes = ["measured on Monday"]')
    return tuple(notes)


def _route(entry: Mapping[str, Any], where: str, cluster: ClusterSpec) -> tuple[str, ...]:
    """All devices on the way, both ends included."""
    table = Table(entry, where, ("from", "to", "via"))
    known = cluster.by_name
    ends = [table.device(key, table.text(key, f'"{next(iter(known))}"'), known) for key in ("from", "to")]
    via = table.names("via", known)
    way = (ends[0], *via, ends[1])
    for name in way:
        if way.count(name) > 1:
            raise ConfigError(f"{where}: the route passes {name} twice: {' → '.join(way)}; leave out the circle")
    if cluster.link(*ends) is not None:
        raise ConfigError(f"{where}: {ends[0]} and {ends[1]} share a link, so messages need no route; leave it out")
    for one, other in pairwise(way):
        if cluster.link(one, other) is None:
            joined = [name for name in known if cluster.link(one, name) is not None]
            raise ConfigError(
                f"{where}, via: {one} and {other} share no link; "
                + (f"{one} has links to {some(joined)}" if joined else f"add a [[link]] between {one} and another")
            )
    return way


def _other_routes(cluster: ClusterSpec, routes: Sequence[Sequence[str]]) -> list[str]:
    """A note for each route that the fabric, which takes the cheapest one, would not take."""
    names = tuple(cluster.by_name)
    place = {name: number for number, name in enumerate(names)}
    linked = [(min(pair), max(pair)) for pair in (tuple(place[end] for end in link.between) for link in cluster.links)]
    found = find_routes(linked, names, cluster.costs(names))
    notes = []
    for way in routes:
        one, other = place[way[0]], place[way[-1]]
        passed = [names[number] for number in found[max(one, other), min(one, other)]]
        taken = passed if one > other else passed[::-1]
        if taken != list(way[1:-1]):
            cheapest = " → ".join((way[0], *taken, way[-1]))
            notes.append(f"route {' → '.join(way)}: the fabric takes the cheapest one, {cheapest}")
    return notes
