"""Contents of a record, and that nothing in it tells who its owner is."""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build_trees import TREES
from gpu_trees import drm, nvidia, nvidia_gpu
from linux_trees import STRIX_IDS
from tree_builder import PARTS, LinuxBuild, probe_of

from ferrule import __version__
from ferrule.errors import LinkError
from ferrule.files import encode_record
from ferrule.links import Inventory, Probe, write_record
from ferrule.links.linux.devices import KFD
from ferrule.links.linux.machine import CHRONY
from ferrule.links.macos.machine import HARDWARE
from ferrule.links.macos.net import ROUTES
from ferrule.links.macos.thunderbolt import PROFILER
from ferrule.links.own import VERSIONS
from ferrule.links.record import Header, LinksRecord
from ferrule.links.recorder import Recorder
from ferrule.links.tree import RecordedTree

SECRETS = {
    "host name": "annas-workstation",
    "MAC address": "3c:ec:ef:12:34:56",
    "its interface's name": "enx3cecef123456",
    "public IPv4 address": "93.184.216.34",
    "its network": "93.184.216.0",
    "public IPv6 address": "2a00:1450:4001:82b::200e",
    "EUI-64 of the MAC address": "3eec:efff:fe12:3456",
    "password": "hunter2",
    "disk": "root=UUID",
    "kernel address": "0xffffffffc0de0000",
    "unique id": "5a1d0780-aaaa-bbbb-cccc-0123456789ab",
    "other computer's name": "bobs-laptop",
    "time server": "81.7.16.52",
    "time server's reference id": "51071034",
    "GPU's UUID": "GPU-5a1d0780-1111-2222-3333-0123456789ab",
    "GPU's unique id": "13834567",
    "who built the driver": "anna@",
}


def private_machine() -> LinuxBuild:
    build = LinuxBuild("somebody's")
    build.machine(
        SECRETS["host name"],
        os_release={"ID": "debian"},
        kernel="6.12.0",
        product=("Some", "Box"),
        cpu="CPU",
        cpus=2,
        memory_kb=1000,
        command_line=f"root=UUID=5a1d0780-aaaa-bbbb-cccc-0123456789ab luks.key={SECRETS['password']} iommu=pt hunter2",
    )
    build.loaded("thunderbolt")
    build.files["/proc/modules"] = "thunderbolt 65536 0 - Live 0xffffffffc0de0000\n"
    home = build.pci("", "0000:00:02.1", "0x020000", (0x10EC, 0x8125), driver="r8169")
    build.loopback()
    build.netdev(
        SECRETS["its interface's name"],
        home,
        addresses=("93.184.216.34/24", "2a00:1450:4001:82b::200e/64", "fe80::3eec:efff:fe12:3456/64", "10.0.0.5/8"),
        mac=SECRETS["MAC address"],
        gateway="93.184.216.1",
    )
    build.commands[CHRONY] = "51071034,81.7.16.52,2,1763766000.1,0.00004,0.1,0.2,0.3,0.4,0.5,0.6,0.7,64.0,Normal\n"
    nhi = build.pci("", "0000:00:03.0", "0x0c0340", (0x8086, 0x1137), driver="thunderbolt")
    service = build.thunderbolt(
        0, nhi, port=1, identity=SECRETS["unique id"], device=("Intel", "Host"), peer=("bobs-laptop", "0" * 8 + "-1-1")
    )
    build.netdev("thunderbolt0", service, mac="02:00:00:00:00:07")
    nvidia(build, "580.95.05")
    build.files["/proc/driver/nvidia/version"] += "  (anna@annas-workstation)\n"
    build.pci("", "0000:00:05.0", "0x030000", (0x10DE, 0x2204), driver="nvidia")
    nvidia_gpu(build, "0000:00:05.0", "NVIDIA GeForce RTX 3090", 0, "580.95.05")
    information = "/proc/driver/nvidia/gpus/0000:00:05.0/information"
    build.files[information] += "GPU UUID: " + SECRETS["GPU's UUID"] + "\n"
    gpu = build.pci("", "0000:00:06.0", "0x030000", (0x1002, 0x744C), driver="amdgpu")
    drm(build, gpu, 0)
    build.files[f"{KFD}/1/properties"] = "gfx_target_version 110000\ndrm_render_minor 128\nunique_id 13834567\n"
    return build


def recorded(build: LinuxBuild, together: str = "") -> LinksRecord:
    return probe_of("made", build.record()).record(together=together)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_record_tells_no_names(kind: str) -> None:
    told = encode_record(recorded(private_machine()))
    secret = SECRETS[kind]
    assert secret.lower() not in told.lower()
    if ":" in secret:
        assert secret.replace(":", "") not in told


def test_what_the_faults_are_about_stays() -> None:
    build = private_machine()
    before = probe_of("made", build.record()).inventory()
    after = probe_of("made", recorded(build)).inventory()
    assert [one.kind for one in after.netdevs] == [one.kind for one in before.netdevs]
    wired = after.netdevs[0]
    assert [one.prefix for one in wired.addresses] == [24, 64, 64, 8]
    assert "10.0.0.5" in {one.address for one in wired.addresses}
    default = next(one for one in after.routes if one.destination == "default")
    mine = ipaddress.ip_interface(f"{wired.addresses[0].address}/24")
    assert ipaddress.ip_address(default.gateway or "") in mine.network
    assert mine.ip in ipaddress.ip_network("198.18.0.0/15")
    assert after.machine.boot_command_line == ("root=redacted", "luks.key=redacted", "iommu=pt", "redacted")
    assert re.fullmatch(r"host-[0-9a-f]{6}", after.machine.name or "")
    assert after.peers[0].netdevs == ("thunderbolt0",)
    assert after.thunderbolt[0].host is not None
    assert after.thunderbolt[0].host.device == "Host"
    assert after.pcie == before.pcie
    assert after.devices == before.devices
    assert [one.architecture for one in after.devices] == [None, "gfx1100"]
    assert after.devices[0].driver_version == "580.95.05"
    assert after.unreadable == before.unreadable


def test_records_of_a_pair_fit_together_only_if_they_were_made_with_the_same_words() -> None:
    def ends(words: tuple[str, str]) -> list[Inventory]:
        names = ("strix-halo-a", "strix-halo-b")
        trees = [Probe.recorded(TREES / f"{name}.json") for name in names]
        records = [probe.record(together=word) for probe, word in zip(trees, words, strict=True)]
        return [probe_of("made", one).inventory() for one in records]

    a, b = ends(("we two", "we two"))
    assert [one.identity for one in a.peers] == [one.host.identity for one in b.thunderbolt if one.host]
    assert {one.device for one in a.peers} == {b.machine.name}
    a, b = ends(("", ""))
    assert not {one.identity for one in a.peers} & {one.host.identity for one in b.thunderbolt if one.host}
    assert {one.device for one in a.peers} != {b.machine.name}


@pytest.mark.parametrize("path", sorted(TREES.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_of_a_record_reads_the_same_but_for_who_it_is(path: Path) -> None:
    before = Probe.recorded(path).inventory()
    after = probe_of(path.name, Probe.recorded(path).record()).inventory()
    for name in ("pcie", "services", "firewalls", "unreadable"):
        assert getattr(after, name) == getattr(before, name)
    assert [(one.name, one.kind, one.mtu, one.carrier, one.members) for one in after.netdevs] == [
        (one.name, one.kind, one.mtu, one.carrier, one.members) for one in before.netdevs
    ]
    assert [(one.rx_gb_s, one.tx_gb_s, one.netdevs, one.services) for one in after.peers] == [
        (one.rx_gb_s, one.tx_gb_s, one.netdevs, one.services) for one in before.peers
    ]
    assert [
        (device.name, port.state, port.rate_gb_s, len(port.gids)) for device in after.rdma for port in device.ports
    ] == [(device.name, port.state, port.rate_gb_s, len(port.gids)) for device in before.rdma for port in device.ports]


def test_a_macs_record_has_no_serial_number_and_no_names() -> None:
    saved = json.loads((TREES / "mac-mini-tb4.json").read_text())
    hardware = json.loads(saved["commands"][HARDWARE])
    platform = str(uuid.UUID(int=77 << 100))
    hardware["SPHardwareDataType"][0] |= {"serial_number": "C02XK1ZZJG5J", "platform_UUID": platform}
    buses = json.loads(saved["commands"][PROFILER])
    peer = next(bus for bus in buses["SPThunderboltDataType"] if "_items" in bus)["_items"][0]
    unique_id, peer["_name"] = peer["domain_uuid_key"], "Anna's own Mac"
    saved["commands"] |= {HARDWARE: json.dumps(hardware), PROFILER: json.dumps(buses)}
    again = probe_of("mac", saved).record()
    told = encode_record(again).lower()
    for secret in ("c02xk1zzjg5j", platform, unique_id.lower(), "anna", "mini-1", "02:5e:00:01"):
        assert secret not in told
    inventory = probe_of("mac", again).inventory()
    assert re.fullmatch("host-[0-9a-f]{6}", inventory.peers[0].name)
    assert inventory.machine.product == "Mac mini (Mac16,10)"
    assert inventory.peers[0].link_gb_s == 40.0


def test_macos_netstat_leaves_out_zeros() -> None:
    saved = json.loads((TREES / "mac-mini-tb4.json").read_text())
    neighbour = "192.168.1.7        a4:83:e7:1:2:3     UHLWIir               en0   1173"
    public = "17.57.144          link#11            UCS                   en0      !"
    saved["commands"][ROUTES] += f"{neighbour}\n{public}\n8.8.8.8            192.168.1.1        UGHS   en0\n"
    again = probe_of("mac", saved).record()
    told = again.commands[ROUTES]
    assert not [one for one in ("a4:83", "17.57.144", "8.8.8.8") if one in told]
    assert re.search(r"^198\.1[89]\.\d+ +link#11", told, re.MULTILINE)
    assert "192.168.1.7 " in told


def test_a_mac_and_a_linux_machine_know_each_other_after_redaction() -> None:
    there = json.loads((TREES / "strix-halo-a.json").read_text())
    here = json.loads((TREES / "mac-mini-tb4.json").read_text())
    before = probe_of("here", here).inventory().peers[0].identity
    text = json.dumps(here).replace("28CA4C30-A263-4C55-B302-953416008019", STRIX_IDS["a"][0].upper())
    linux, mac = (probe_of("x", one).record(together="us") for one in (there, json.loads(text)))
    peer = probe_of("here", mac).inventory().peers[0]
    host = probe_of("there", linux).inventory().thunderbolt[0].host
    assert host is not None
    assert peer.identity == host.identity != before


def test_the_header_counts_what_was_redacted() -> None:
    header = recorded(private_machine()).header
    assert header.made_by == f"ferrule {__version__}"
    assert header.redacted["host name"] == 2
    assert header.redacted["public IP address"] == 5  # two addresses, their networks and a gateway
    assert header.redacted["boot parameter"] == 3


def test_the_record_of_an_older_ferrule_tells_its_version_by_its_header() -> None:
    saved: dict[str, Any] = msgspec.to_builtins(recorded(private_machine()))
    assert VERSIONS not in saved["commands"]
    saved["header"]["made_by"] = "ferrule 0.0.3"
    assert probe_of("older", saved).inventory().machine.software == (("ferrule", "0.0.3"),)
    saved["commands"][VERSIONS] = "ferrule       0.0.4\npython        3.12.3\nnonsense\n\x00 1\n"
    found = probe_of("newer", saved).inventory().machine
    assert (found.version("ferrule"), found.version("python"), found.version("torch")) == ("0.0.4", "3.12.3", None)
    assert len(found.software) == 2


def test_unused_table_entries_are_not_kept() -> None:
    build = LinuxBuild("RoCE")
    build.machine("x", os_release={}, kernel="6", product=("a", "b"), cpu="c", cpus=1, memory_kb=9)
    card = build.pci("", "0000:00:02.1", "0x020000", (0x15B3, 0x1021), driver="mlx5_core")
    device = build.rdma("mlx5_0", card, hca="MT4129", board="B", firmware="28.1")
    build.rdma_port(device, 1, state="4: ACTIVE", rate="100 Gb/sec (4X EDR)", layer="Ethernet")
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    build.put(f"{device}/ports/1/gids", **{str(index): zero for index in range(256)})
    saved = recorded(build)
    assert not [path for path in saved.files if "/gids/" in path]
    again = probe_of("again", saved).inventory()
    assert again.rdma[0].ports[0].state == "ACTIVE"
    assert again.rdma[0].ports[0].gids == ()


@pytest.mark.parametrize("name", ["here.json", "here.json.gz"])
def test_a_record_is_written_once_and_opened_again(tmp_path: Path, name: str) -> None:
    saved = recorded(private_machine())
    write_record(saved, tmp_path / name)
    assert Probe.recorded(tmp_path / name).inventory().machine.tree == name
    with pytest.raises(LinkError, match="is there already"):
        write_record(saved, tmp_path / name)
    with pytest.raises(LinkError, match="cannot write"):
        write_record(saved, tmp_path / "no" / name)


def test_a_file_says_what_it_is_and_then_all_that_was_read(tmp_path: Path) -> None:
    write_record(recorded(private_machine()), tmp_path / "here.json")
    text = (tmp_path / "here.json").read_text()
    fields = json.loads(text)
    assert list(fields) == ["format", "version", "header", *PARTS]
    assert list(fields["header"]) == ["made_by", "made_on", "redacted"]
    assert text == json.dumps(fields, indent=1, ensure_ascii=False) + "\n"


def test_names_that_are_no_utf8_do_not_keep_a_record_from_being_written(tmp_path: Path) -> None:
    recorder = Recorder(RecordedTree("odd", files={"/odd/\udcff": "x"}, links={"/way": "/odd/\udcff"}))
    assert (recorder.names("/odd"), recorder.read("/way")) == (["\udcff"], "x")
    write_record(recorder.record(Header()), tmp_path / "odd.json")
    assert Probe.recorded(tmp_path / "odd.json").tree.read("/way") == "x"


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.json.gz"
    write_record(recorded(private_machine()), whole)
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(LinkError, match="cut off"):
        Probe.recorded(cut)
