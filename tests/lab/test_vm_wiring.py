"""From a profile to guests with cables, and from words to commands; all without a guest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ferrule.errors import ConfigError
from ferrule.hardware import find_lab
from ferrule.lab.usb4.profile import Plan, Usb4Host
from ferrule.lab.vm.command import job
from ferrule.lab.vm.joined import guest_of, usb4_cables
from ferrule.lab.vm.machine.guest import Guest
from ferrule.lab.vm.options import VmOptions
from ferrule.lab.vm.wiring import wire

MESH = "four-mesh"


def test_two_cables_have_a_controller_each() -> None:
    wiring = wire(find_lab("half-trained"))
    assert wiring.controllers("strix-1") == 2
    assert wiring.cables_file("strix-2").splitlines() == [
        "0000:00:10.0 1 cable0 10.77.0.2/24 10.77.0.1",
        "0000:00:11.0 1 cable1 10.77.1.2/24 10.77.1.1",
    ]
    assert [cable.gbps for cable in usb4_cables(wiring)] == [20, 10]
    assert "10.77.0.1 strix-1\n" in wiring.hosts_file("strix-2")


@pytest.mark.parametrize("name", ["two-strix", MESH])
def test_every_cable_fits_into_the_emulated_controllers(name: str) -> None:
    wiring = wire(find_lab(name))
    hosts = tuple(Usb4Host(host, wiring.controllers(host), 12, wiring.ports(host)) for host in wiring.hosts)
    assert len(Plan(hosts, tuple(usb4_cables(wiring))).cables) == len(wiring.cables)


def test_in_a_mesh_everyone_knows_everyone() -> None:
    wiring = wire(find_lab(MESH))
    assert {other.host for other in wiring.neighbours("strix-3")} == {"strix-1", "strix-2", "strix-4"}
    lines = wiring.cables_file("strix-1").splitlines()
    assert [line.split()[:2] for line in lines] == [["0000:00:10.0", "1"], ["0000:00:11.0", "1"], ["0000:00:10.0", "3"]]


def test_other_cables_are_refused_with_labs_that_would_do() -> None:
    with pytest.raises(
        ConfigError, match=r"two-pc-10g has a cable ethernet-10g.*choose one of four-mesh, half-trained"
    ):
        wire(find_lab("two-pc-10g"))
    with pytest.raises(ConfigError, match="has a switch"):
        wire(find_lab("three-pc-switch"))


def test_a_guest_of_a_lab_keeps_what_its_template_says() -> None:
    template = Guest(script="dmesg -n 8", modules=["thunderbolt"], files={"/lab/x": "y"}, cpus=1)
    guest = guest_of("strix-2", wire(find_lab("two-strix")), template, [Path("/s")])
    assert (guest.name, guest.modules, guest.files["/lab/x"]) == ("strix-2", ["thunderbolt"], "y")
    assert guest.script.endswith("\ndmesg -n 8")
    assert guest.sessions > 1


def test_peer_is_put_into_the_words() -> None:
    wiring = wire(find_lab("two-strix"))
    found = job(["nc", "{peer_address}", "9", "a b"], "strix-1", wiring, "nc -l {host}")
    assert found.script == "nc 10.77.0.2 9 'a b'"
    assert (found.peer, found.peer_script) == ("strix-2", "nc -l strix-1")
    assert found.env == {"FERRULE_HOST_ID": "strix-1", "PEER": "strix-2", "PEER_ADDRESS": "10.77.0.2"}


def test_a_lone_ping_or_iperf3_goes_to_the_peer() -> None:
    wiring = wire(find_lab("two-strix"))
    assert job(["ping"], "strix-2", wiring).script == "ping -c 5 strix-1"
    assert job(["iperf3"], "strix-1", wiring).peer_script.startswith("iperf3 -s")
    assert job(["iperf3", "-v"], "strix-1", wiring).peer_script == ""


def test_a_lone_program_of_perftest_runs_on_both_hosts() -> None:
    found = job(["ib_write_lat"], "strix-1", wire(find_lab("two-strix")))
    assert found.script == "ib_write_lat -F -u 18 -x 1 -d $(lab-cables device) strix-2"
    assert found.peer_script == "ib_write_lat -F -u 18 -x 1 -d $(lab-cables device)"


def test_all_cables_to_a_peer_are_one_device_with_an_address_for_each_pair() -> None:
    wiring = wire(find_lab("two-strix"))
    assert wiring.devices_file("strix-1") == "ferrule-strix-2 frl-strix-2 10.79.0.1/24 10.79.0.2\n"
    assert wiring.devices_file("strix-2") == "ferrule-strix-1 frl-strix-1 10.79.0.2/24 10.79.0.1\n"
    mesh = wire(find_lab(MESH))
    lines = [line.split() for host in mesh.hosts for line in mesh.devices_file(host).splitlines()]
    assert len({own for _, _, own, _ in lines}) == len(lines) == 12
    assert {own.removesuffix("/24") for _, _, own, _ in lines} == {peer for *_, peer in lines}


def test_without_a_cable_there_is_no_peer(tmp_path: Path) -> None:
    profile = tmp_path / "alone.toml"
    profile.write_text('[lab.alone]\ntitle = "one"\nhosts = [{ name = "box", machine = "strix-halo" }]\n')
    wiring = wire(find_lab(str(profile)))
    assert wiring.controllers("box-1") == 1
    assert job(["true"], "box-1", wiring).script == "true"
    with pytest.raises(ConfigError, match="no peer"):
        job(["ping"], "box-1", wiring)


def test_options_survive_the_way_to_the_holder(tmp_path: Path) -> None:
    options = VmOptions(kernel="6.12", modules=("rdma_rxe",), rdma=True, driver=True, hops=3)
    assert msgspec.json.decode(msgspec.json.encode(options), type=VmOptions) == options
    with pytest.raises(ConfigError, match=r"no kernel '5\.10'; choose 6\.1, 6\.12, newest"):
        VmOptions(kernel="5.10").machines()
    with pytest.raises(ConfigError, match=r"no module .*gone\.ko"):
        VmOptions(modules=(str(tmp_path / "gone.ko"),)).template()
