"""The machine that runs the tests, whatever it is."""

from __future__ import annotations

import json
from pathlib import Path

from ferrule.links import Probe, write_record


def test_this_machine_is_read_and_its_record_reads_the_same(tmp_path: Path) -> None:
    live = Probe.live().inventory()
    assert live.machine.tree == "live"
    assert live.machine.kernel
    assert live.machine.memory_bytes is not None
    assert live.machine.memory_bytes > 1 << 28
    assert "loopback" in {one.kind for one in live.netdevs}

    path = tmp_path / "here.json.gz"
    write_record(Probe.live().record(), path)
    again = Probe.recorded(path).inventory()
    assert again.machine.tree == "here.json.gz"
    assert again.machine.memory_bytes == live.machine.memory_bytes
    assert again.machine.name != live.machine.name
    assert [(one.name, one.kind, one.mtu) for one in again.netdevs] == [
        (one.name, one.kind, one.mtu) for one in live.netdevs
    ]
    assert [one.address for one in again.pcie] == [one.address for one in live.pcie]
    assert again.unreadable == live.unreadable
    macs = {one.mac for one in live.netdevs if one.mac}
    told = json.dumps(Probe.recorded(path).record())
    assert not [mac for mac in macs if mac in told]
