"""An MTU and an address that last, with NetworkManager's peers: what is written, run, and taken back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from linux_trees import pc
from test_doctor import read
from test_doctor_checks import STRIX, net
from test_doctor_fix import MANAGERS, Recorder, files, fixes_of, kept, kept_alone, no_manager, silent, thunderbolt1
from tree_builder import probe_of

from ferrule.files import encode_record
from ferrule.links.doctor.fix import Journal, Target, apply, undo
from ferrule.links.doctor.fix.plan import choose_address
from ferrule.links.linux.machine import SYSTEMCTL, UNITS

change = dataclasses.replace


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are slow, and no test takes the power away."""
    monkeypatch.setattr("os.fsync", lambda _: None)


RELOAD = ["networkctl reload", "networkctl reconfigure thunderbolt1"]
MTU = "ip link set dev thunderbolt1 mtu 65520"
MATCH = "[Match]\nName=thunderbolt1\n\n[Link]\nRequiredForOnline=no\n\n[Network]\n"
PLAN = "network:\n  version: 2\n  ethernets:\n    thunderbolt1:\n"
OWN = "etc/systemd/network/05-ferrule-thunderbolt1.network"
STANZAS = "etc/network/interfaces.d/ferrule-"


@pytest.mark.parametrize(
    ("manager", "written", "asked"),
    [
        (
            "systemd-networkd",
            {OWN: f"{MATCH}Address=ADDRESS\n", f"{OWN}.d/90-ferrule-mtu.conf": "[Link]\nMTUBytes=65520\n"},
            [*RELOAD, MTU, *RELOAD],
        ),
        (
            "networkd-file",
            {
                OWN: f"{MATCH}Address=ADDRESS\n",
                "etc/systemd/network/cables.network.d/90-ferrule-mtu.conf": "[Link]\nMTUBytes=65520\n",
            },
            [*RELOAD, MTU, *RELOAD],
        ),
        (
            "netplan",
            {
                "etc/netplan/90-ferrule-address-thunderbolt1.yaml": (
                    f"{PLAN}      addresses: [ADDRESS]\n      optional: true\n"
                ),
                "etc/netplan/90-ferrule-mtu-thunderbolt1.yaml": f"{PLAN}      mtu: 65520\n",
            },
            ["netplan generate", *RELOAD, MTU, "netplan generate", *RELOAD],
        ),
        (
            "ifupdown",
            {
                f"{STANZAS}thunderbolt1": (
                    "allow-hotplug thunderbolt1\niface thunderbolt1 inet static\n    address ADDRESS\n"
                ),
                f"{STANZAS}mtu-thunderbolt1": f"iface thunderbolt1 inet manual\n    up {MTU}\n",
            },
            ["ip address add ADDRESS dev thunderbolt1", MTU],
        ),
    ],
)
def test_address_and_mtu_last_with_the_manager_of_the_interface(
    tmp_path: Path, manager: str, written: dict[str, str], asked: list[str]
) -> None:
    inventory = kept_alone(net(STRIX, "thunderbolt1", addresses=()), MANAGERS[manager])
    address = choose_address(inventory, change(thunderbolt1(), addresses=())) or ""
    run = Recorder()
    target = Target(tmp_path, run)
    for name in ("no-address", "mtu-small"):
        fix = fixes_of(inventory)[name]
        assert f", to last, with {MANAGERS[manager].program}." in fix.title
        apply(fix, target, Journal(target.state), silent)
    found = {path: text.partition("takes it away.\n")[2] for path, text in files(tmp_path).items()}
    assert found == {path: text.replace("ADDRESS", address) for path, text in written.items()}
    assert run.asked == [words.replace("ADDRESS", address) for words in asked]
    if manager == "netplan":
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "etc/netplan").iterdir()} == {0o600}
    for entry in reversed(Journal(target.state).entries()):
        undo(entry, target, Journal(target.state), silent)
    assert files(tmp_path) == {}
    assert not list(tmp_path.rglob("*.network.d"))


def test_an_mtu_alone_gets_a_file_that_leaves_the_address(tmp_path: Path) -> None:
    inventory = kept_alone(read(STRIX), MANAGERS["systemd-networkd"])
    target = Target(tmp_path, Recorder())
    apply(fixes_of(inventory)["mtu-small"], target, Journal(target.state), silent)
    assert files(tmp_path)[OWN].endswith("[Network]\nKeepConfiguration=yes\n")
    assert f"{OWN}.d/90-ferrule-mtu.conf" in files(tmp_path)


def test_a_file_of_several_interfaces_is_not_added_to(tmp_path: Path) -> None:
    fix = fixes_of(kept(read(STRIX), MANAGERS["networkd-file"]))["mtu-small"]
    assert "until the next start: its .network file is also that of other interfaces" in fix.title
    target = Target(tmp_path, Recorder())
    apply(fix, target, Journal(target.state), silent)
    assert files(tmp_path) == {}


def test_that_nothing_lasts_is_said() -> None:
    for fix in fixes_of(no_manager(net(STRIX, "thunderbolt1", addresses=()))).values():
        if fix.finding in ("no-address", "mtu-small"):
            assert "until the next start: nothing was found that keeps settings of this interface" in fix.title


def test_a_record_holds_no_passwords_of_interfaces() -> None:
    record = pc().record()
    here = record["links"]["/sys/class/net/enp8s0"]
    record["files"] |= {
        f"{here}/ifindex": "3\n",
        "/run/NetworkManager/devices/3": "[device]\nmanaged=false\nconnection-name=anna\n",
        "/run/systemd/netif/links/3": "ADMIN_STATE=configured\nNETWORK_FILE=/etc/x.network\nDOMAINS=anna.example\n",
        "/etc/network/interfaces": "source interfaces.d/*\niface w inet dhcp\n  wpa-psk anna\n",
        "/run/network/ifstate": "lo=lo\nanna=anna\n",
    }
    running = {"NetworkManager": "active", "systemd-networkd": "active", "networking": "active"}
    record["commands"][SYSTEMCTL] = "".join(f"{running.get(unit, 'inactive')}\n" for unit in UNITS)
    before = probe_of("pc", record)
    saved = before.record()
    assert "NETWORK_FILE" in encode_record(saved)
    assert "anna" not in encode_record(saved)
    after = probe_of("pc", saved).inventory()
    assert [one.manager for one in after.netdevs] == [one.manager for one in before.inventory().netdevs]
    for unit in ("NetworkManager", "systemd-networkd"):
        running[unit] = "inactive"
        record["commands"][SYSTEMCTL] = "".join(f"{running.get(unit, 'inactive')}\n" for unit in UNITS)
        assert "anna" not in encode_record(probe_of("pc", record).record())
