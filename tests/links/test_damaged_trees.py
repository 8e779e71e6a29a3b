"""A record that was cut, damaged or forged never makes discovery fail: what it cannot understand is listed."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build_trees import TREES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tree_builder import PARTS, probe_of

from ferrule.errors import LinkError
from ferrule.links import Inventory, Probe

RECORDS = {name: json.loads((TREES / f"{name}.json").read_text()) for name in ("strix-halo-a", "wifi-only")}
RECORDS |= {name: json.loads((TREES / f"{name}.json").read_text()) for name in ("connectx3-m2", "mac-mini-tb4")}
RECORDS |= {name: json.loads((TREES / f"{name}.json").read_text()) for name in ("gpu-strix-halo", "gpu-two-3090")}
PLACES = {name: [(part, path) for part in PARTS for path in sorted(record[part])] for name, record in RECORDS.items()}

nonsense = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "\n",
                "\0",
                "-1",
                "99999999999999999999999",
                "0x",
                "nan",
                "1e999",
                "Unknown",
                "\ud7ff",
                "٣",
                "[" * 5000,
            ),
            *(
                "{}",
                "[]",
                "null",
                "[1]",
                '[{"ifname": 3, "addr_info": {}}]',
                '{"SPThunderboltDataType": [{"_items": 1}]}',
            ),
            *("255", "4: ", "20.0 Gb/s Gb/s", "/sys", "EACCES", "ELOOP", "::1", "fe80::1%eth0", "a" * 70_000),
        ]
    ),
    st.text(max_size=40),
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A record of which some entries are gone, cut short, replaced, or fail."""
    name = draw(st.sampled_from(sorted(RECORDS)))
    broken = {part: dict(RECORDS[name][part]) for part in PARTS}
    for part, path in draw(st.lists(st.sampled_from(PLACES[name]), min_size=1, max_size=8, unique=True)):
        match draw(st.sampled_from(("gone", "cut", "other", "fails"))):
            case "gone":
                del broken[part][path]
            case "cut":
                broken[part][path] = broken[part][path][: draw(st.integers(0, 60))]
            case "other":
                broken[part][path] = draw(nonsense) if part != "directories" else draw(st.lists(nonsense, max_size=3))
            case "fails":
                broken["errors"][path] = draw(st.sampled_from(["EACCES", "EIO", "ENOENT", "EINVAL", "sic"]))
    return broken


@given(damaged())
@settings(
    max_examples=300, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
def test_damaged_records_are_read_without_fail(record: dict[str, Any]) -> None:
    inventory = probe_of("damaged", record).inventory()
    json.dumps(msgspec.to_builtins(inventory))
    for one in inventory.unreadable:
        assert one.path
        assert one.why


NET = "/sys/devices/pci0000:00/0000:00:02.1/0000:bf:00.0"
PEER = "/sys/devices/pci0000:00/0000:00:08.3/0000:c7:00.5/domain0/0-0/0-2"
PORT = "/sys/devices/pci0000:00/0000:00:01.2/0000:01:00.0/infiniband/ibp1s0/ports/1"
SPOILED = [
    ("strix-halo-a", "files", f"{PEER}/rx_lanes", "two"),
    ("strix-halo-a", "files", f"{PEER}/tx_speed", "fast"),
    ("strix-halo-a", "files", f"{NET}/net/enp191s0/mtu", "-5"),
    ("strix-halo-a", "files", f"{NET}/net/enp191s0/carrier", "2"),
    ("strix-halo-a", "files", f"{NET}/max_link_speed", "8 furlongs"),
    ("strix-halo-a", "files", "/proc/self/limits", "Max locked memory  plenty"),
    ("strix-halo-a", "files", "/proc/meminfo", "MemTotal: much"),
    (
        "connectx3-m2",
        "files",
        f"{PORT}/state",
        "up",
    ),
    ("connectx3-m2", "files", f"{PORT}/rate", "?"),
    ("mac-mini-tb4", "commands", "system_profiler -json SPThunderboltDataType", "{"),
    ("mac-mini-tb4", "commands", "ifconfig -a", "en0 is fine"),
]


@pytest.mark.parametrize(("name", "part", "path", "text"), SPOILED)
def test_what_makes_no_sense_is_listed_and_the_rest_is_read(name: str, part: str, path: str, text: str) -> None:
    record = RECORDS[name]
    assert path in record[part]
    whole = probe_of("whole", record).inventory()
    spoiled = probe_of("whole", {**record, part: {**record[part], path: text}}).inventory()
    (listed,) = set(spoiled.unreadable) - set(whole.unreadable)
    last = path.rpartition("/")[2] if part == "files" else f"$ {path}"
    assert listed.path.endswith(last)
    same = [one.name for one in dataclasses.fields(Inventory) if getattr(whole, one.name) == getattr(spoiled, one.name)]
    assert len(same) >= 4


@pytest.mark.parametrize("part", ["files", "commands"])
def test_a_record_of_nothing_is_a_machine_of_which_nothing_is_known(part: str) -> None:
    inventory = probe_of("empty", {part: {}}).inventory()
    assert inventory.machine.system == "unknown"
    assert [one.path for one in inventory.unreadable] == ["$ uname -s"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no record"),
        (b"{", "is no record"),
        (b"[1]", "is no record"),
        (b"\xff\xfe", "is no record"),
        (b"\x1f\x8bnot really", "is no record"),
        (b'{"format": "ferrule-links-record", "version": 99}', "version 99"),
        (b'{"kind": "plan", "version": 1}', "is no record"),
        (b'{"format": "ferrule-links-record", "version": 1, "header": {}}', "is no record"),
        (b"[" * 100_000, "is no record"),
        (b'{"format": "ferrule-links-record", "version": 1, "more": ' + b"[" * 100_000, "is no record"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(LinkError, match=told):
        Probe.recorded(path)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"files": {"/a": 1}}, r"is no record .*: Expected `str`, got `int` - at `\$\.files\[\.\.\.\]`"),
        ({"directories": {"/a": "b"}}, r"at `\$\.directories"),
        ({"links": None}, r"at `\$\.links`"),
        ({"header": {"made_by": 3}}, r"at `\$\.header\.made_by`"),
        ({"format": "other"}, r"at `\$\.format`"),
    ],
)
def test_what_a_record_has_of_the_wrong_type_is_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(LinkError, match=told):
        probe_of("wrong", RECORDS["wifi-only"] | wrong)


def test_a_record_is_not_read_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TREES / "wifi-only.json"
    size = path.stat().st_size
    monkeypatch.setattr("ferrule.links.record._MAX_RECORD_BYTES", size)
    assert Probe.recorded(path).inventory().machine.tree == path.name
    monkeypatch.setattr("ferrule.links.record._MAX_RECORD_BYTES", size - 1)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for one in (path, packed):
        with pytest.raises(LinkError, match="is no record"):
            Probe.recorded(one)


def test_a_record_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"cannot read .*gone\.json"):
        Probe.recorded(tmp_path / "gone.json")
