"""Records in files: each is of a kind, which its file tells, and those of earlier versions are read."""

import ast
import importlib
import json
import re
from pathlib import Path

import msgspec
import pytest

from ferrule.cluster.home import HostSettings
from ferrule.files import FileRecord, decode_record, read_record, write_record
from ferrule.kmod.state import Record
from ferrule.lab.daemon.registry import HostState, State
from ferrule.links.doctor.fix.actions import Command, Fix, Step
from ferrule.links.doctor.fix.journal import Entry

SOURCE = Path(__file__).parents[1] / "src"


class Fruit(FileRecord, frozen=True, tag="fruit"):
    name: str


class Tree(FileRecord, frozen=True, tag="tree"):
    name: str


def test_a_record_tells_its_kind_and_is_not_taken_for_another(tmp_path: Path) -> None:
    file = tmp_path / "fruit.json"
    write_record(file, Fruit("pear"))
    assert json.loads(file.read_text()) == {"kind": "fruit", "name": "pear"}
    assert read_record(file, Fruit) == Fruit("pear")
    with pytest.raises(msgspec.DecodeError, match="Invalid value 'fruit'"):
        read_record(file, Tree)


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "fruit.json"
    write_record(file, Fruit("pear"))
    size = file.stat().st_size
    assert read_record(file, Fruit, most=size) == Fruit("pear")
    with pytest.raises(msgspec.DecodeError, match=f"longer than {size - 1} bytes"):
        read_record(file, Fruit, most=size - 1)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"name": "\xff"}', b'{"more": ' + b"[" * 100_000, b'{"kind": 1}'])
def test_whatever_is_no_record_is_one_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_record(data, Fruit)


OLDER = [
    (
        '{"host": "0123456789abcdef0123456789abcdef", "name": "strix-a", "port": 8421, "listen": "", "seeds": ["b:1"],'
        ' "mdns": true}',
        HostSettings("0123456789abcdef0123456789abcdef", "strix-a", 8421, seeds=("b:1",)),
    ),
    (
        '{"phase": "installed", "version": "1.0", "previous": "", "written": ["/etc/x"], "schema": 1}',
        Record("installed", "1.0", written=("/etc/x",)),
    ),
    (
        '{"fix": {"finding": "mtu-small", "subject": "eth0", "title": "t", "steps": [{"do": {"kind": "command", "argv":'
        ' ["ip"], "device": "", "expect": "", "whole": false}, "undo": null}], "later": ""}, "when": "2026-01-01",'
        ' "number": 3, "schema": 1, "begun": 1, "uncertain": false, "complete": true}',
        Entry(Fix("mtu-small", "eth0", "t", (Step(Command(("ip",))),)), "2026-01-01", number=3, begun=1, complete=True),
    ),
    (
        '{"name": "x", "pid": 7, "boot": "b", "user": "u", "hosts": [{"name": "a", "path": "/p", "inode": 1,'
        ' "cookie": 2, "machine": "m"}]}',
        State(7, "b", "u", (HostState(name="a", path="/p", inode=1, cookie=2),)),
    ),
]


@pytest.mark.parametrize(("text", "record"), OLDER, ids=[type(record).__name__ for _, record in OLDER])
def test_what_an_earlier_version_wrote_without_a_kind_is_read(text: str, record: FileRecord) -> None:
    assert decode_record(text, type(record)) == record


def record_classes() -> list[type[FileRecord]]:
    """Those of Ferrule, by its source."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        if "FileRecord, " in (text := file.read_text()):
            module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and "FileRecord" in map(ast.unparse, node.bases):
                    found.append(getattr(importlib.import_module(module), node.name))
    return found


def test_every_kind_of_file_has_a_name_of_its_own() -> None:
    kinds = [str(each.__struct_config__.tag) for each in record_classes()]
    assert len(kinds) > 8
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind) for kind in kinds)
