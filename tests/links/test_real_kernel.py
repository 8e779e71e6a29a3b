"""Discovery in a virtual machine with a stock kernel and emulated RDMA devices."""

from __future__ import annotations

import json

import pytest
from tree_builder import probe_of

from ferrule.lab import vm

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SCRIPT = """
set -e
ip link add rail0 type dummy; ip link set rail0 mtu 4200 up; ip addr add 10.0.0.1/24 dev rail0
ip link add join0 type bridge; ip link add port0 type veth peer name end0; ip link set port0 master join0
ip link add link rail0 name rail0.7 type vlan id 7
rdma link add rxe0 type rxe netdev rail0
python3 - <<'END'
from pathlib import Path
from ferrule.links import Probe, write_record
write_record(Probe.live().record(), Path("/results/record.json"))
END
"""


def test_a_stock_kernel_is_read_and_its_record_reads_the_same(vm_lab: vm.VmLab) -> None:
    modules = ["rdma_rxe", "thunderbolt", "bridge", "8021q", "dummy"]
    result = vm_lab.run(vm.Guest(script=SCRIPT, modules=modules, python=["ferrule"]), timeout=240)
    result.check()
    inventory = probe_of("guest", json.loads(result.files["record.json"])).inventory()
    assert inventory.unreadable == ()
    machine = inventory.machine
    assert (machine.os_id, machine.vendor, machine.system) == ("debian", "QEMU", "linux")
    assert machine.module("thunderbolt") is not None
    assert machine.iommu is not None
    assert machine.iommu.mode == "off"
    kinds = {one.name: (one.kind, one.mtu, one.master, one.members, one.parent) for one in inventory.netdevs}
    assert kinds["rail0"] == ("virtual", 4200, None, (), None)
    assert kinds["rail0.7"] == ("virtual", 4200, None, (), "rail0")
    assert kinds["join0"] == ("bridge", 1500, None, ("port0",), None)
    assert kinds["port0"] == ("virtual", 1500, "join0", (), None)
    (device,) = inventory.rdma
    assert (device.name, device.driver, device.software) == ("rxe0", "rxe", True)
    (port,) = device.ports
    assert (port.state, port.link_layer, port.active_mtu, port.netdevs) == ("ACTIVE", "Ethernet", 4096, ("rail0",))
    assert [(gid.index, gid.type) for gid in port.gids] == [(0, "RoCE v2"), (1, "RoCE v2")]
    assert port.gids[1].address == "10.0.0.1"
    wired = inventory.netdev("rail0")
    assert wired is not None
    assert port.gids[0].address in {one.address for one in wired.addresses}
