"""The machine that runs the tests, whatever it is."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

from ferrule import __version__
from ferrule.files import encode_record
from ferrule.links import Probe, write_record
from ferrule.links.record import Header
from ferrule.links.recorder import Recorder
from ferrule.links.redact import Redactor
from ferrule.links.tree import LiveTree


def test_this_machine_is_read_and_its_record_reads_the_same(tmp_path: Path) -> None:
    recorder = Recorder(LiveTree())
    live = Probe(recorder).inventory()
    assert live.machine.tree == "live"
    assert live.machine.kernel
    assert live.machine.version("ferrule") == __version__
    assert live.machine.version("python") == platform.python_version()
    assert live.machine.memory_bytes is not None
    assert live.machine.memory_bytes > 1 << 28
    assert "loopback" in {one.kind for one in live.netdevs}

    path = tmp_path / "here.json.gz"
    saved = Redactor().record(recorder.record(Header()))
    write_record(saved, path)
    again = Probe.recorded(path).inventory()
    assert again.machine.name != live.machine.name
    same = {"tree": "live", "name": live.machine.name, "boot_command_line": live.machine.boot_command_line}
    assert dataclasses.replace(again.machine, **same) == live.machine  # type: ignore[arg-type]
    assert [(one.name, one.kind, one.mtu, one.counters) for one in again.netdevs] == [
        (one.name, one.kind, one.mtu, one.counters) for one in live.netdevs
    ]
    assert (again.pcie, again.services, again.unreadable) == (live.pcie, live.services, live.unreadable)
    told = encode_record(saved)
    assert not [one.mac for one in live.netdevs if one.mac and one.mac in told]
