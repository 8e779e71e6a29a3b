"""Output of `ferrule driver status|check|package`: lacks of a machine, in its own words, and whether RDMA works."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from machines import INVENTORY, KERNEL, SOURCE, FakeMachine
from typer.testing import CliRunner

from ferrule.cli.kmod import app as cli
from ferrule.cli.main import app
from ferrule.fabric.transports.verbs.paths import Gid, Port
from ferrule.fabric.transports.verbs.ports import Found
from ferrule.kmod import Built, build_deb, check, install_command, look, needs, packages_of, read_source, usable
from ferrule.kmod.look import parse_dkms, parse_mokutil
from ferrule.kmod.record import PLACE
from ferrule.kmod.state import Signing, State
from ferrule.links import UNLIMITED_BYTES, Inventory, Machine, Probe

change = dataclasses.replace
GOOD = State(
    change(INVENTORY, machine=change(INVENTORY.machine, memlock_bytes=UNLIMITED_BYTES)),
    root=False,
    programs=frozenset({"dkms", "make", "gcc", "modprobe", "mokutil", "openssl"}),
    headers=True,
    provider="/usr/lib/librxe-rdmav34.so",
)
BARE = State(Inventory(Machine("live", "linux", os_id="debian", kernel=KERNEL)), root=False)


def on(state: State, **fields: Any) -> State:
    return change(state, inventory=change(state.inventory, machine=change(state.inventory.machine, **fields)))


def told(state: State) -> str:
    return "\n".join("\n".join((one.what, *one.commands)) for one in needs(state))


def test_nothing_is_missing_where_all_is_there() -> None:
    assert needs(GOOD) == ()


@pytest.mark.parametrize(
    ("system", "command"),
    [
        ({"os_id": "debian"}, f"apt-get install -y dkms .* linux-headers-{KERNEL} linux-headers-amd64 rdma-core"),
        ({"os_id": "ubuntu", "os_like": ("debian",)}, f"apt-get install -y dkms .* linux-headers-{KERNEL} rdma-core"),
        ({"os_id": "fedora"}, f"dnf install -y dkms .* kernel-devel-{KERNEL} rdma-core libibverbs"),
        ({"os_id": "cachyos", "os_like": ("arch",)}, "pacman -S --noconfirm --needed dkms .* linux-cachyos-headers"),
    ],
)
def test_packages_have_the_names_of_the_distribution(system: dict[str, Any], command: str) -> None:
    state = change(on(BARE, **system), kernel_package="linux-cachyos")
    found = needs(state)
    assert re.match(command, " ".join(install_command(state, packages_of(found))))
    assert "host controller" in told(state), "all that is missing is told at once"


def test_the_key_comes_before_the_module() -> None:
    def signing(**fields: Any) -> State:
        return change(GOOD, signing=Signing(True, True, "/m.pub", "/m.key", **fields))

    assert "openssl req" in told(signing())
    untrusted = told(signing(certificate_there=True, trust="untrusted"))
    assert "mokutil --import /m.pub" in untrusted
    assert "openssl" not in untrusted
    assert "Enroll MOK" in told(signing(certificate_there=True, trust="pending"))
    assert needs(signing(certificate_there=True, trust="trusted")) == ()


def test_old_kernels_users_and_packages_stop_it() -> None:
    assert "6.1 or newer" in told(on(GOOD, kernel="5.15.0-91-generic"))
    assert "2 do now" in told(change(GOOD, users=2))
    assert "apt-get purge ferrule-rdma-dkms" in told(change(GOOD, package="0.1"))
    assert "this is macOS" in told(State(Inventory(Machine("live", "macos", os_name="macOS")), root=False))


@pytest.mark.parametrize(
    ("files", "machine", "required"),
    [
        ({}, {"secure_boot": False}, False),
        ({}, {"secure_boot": True}, True),
        ({"sig_enforce": "N"}, {"secure_boot": True, "lockdown": "none"}, False),  # such as Arch's kernel
        ({"sig_enforce": "N"}, {"secure_boot": True, "lockdown": "integrity"}, True),
        ({"sig_enforce": "Y"}, {"secure_boot": None}, True),
    ],
)
def test_what_the_kernel_demands_counts(
    tmp_path: Path, files: dict[str, str], machine: dict[str, Any], required: bool
) -> None:
    fake = FakeMachine(tmp_path, mokutil="/mok.der is already enrolled")
    fake.place("usr/bin/mokutil")
    fake.place("mok.der")
    fake.place("etc/dkms/framework.conf", '# mok_certificate=/no\nmok_certificate="/mok.der"\n')
    for name, text in files.items():
        fake.place(f"sys/module/module/parameters/{name}", f"{text}\n")
    signing = look(fake.target, change(INVENTORY, machine=change(INVENTORY.machine, **machine)), root=True).signing
    assert (signing.required, signing.trust) == (required, "trusted")


def test_what_dkms_and_mokutil_say() -> None:
    text = "ferrule-rdma/0.1.0.ab, 6.12.1, x86_64: installed (original exists)\nferrule-rdma, 0.1, 6.1, x86_64: built\n"
    assert parse_dkms(f"{text}ferrule-rdma/0.2: added\nother/1, 6.1, x86_64: installed\n") == (
        Built("0.1.0.ab", "6.12.1", "installed"),
        Built("0.1", "6.1", "built"),
        Built("0.2", "", "added"),
    )
    assert [parse_mokutil(f"/m.pub {words}") for words in ("is not enrolled", "is already enrolled", "?")] == [
        "untrusted",
        "trusted",
        "unknown",
    ]


@dataclasses.dataclass
class Files:
    """A tree of a machine, in which there are only these files."""

    texts: dict[str, str]
    name: str = "files"
    live: bool = False

    def read(self, path: str, limit: int = 0) -> str:
        return self._found(self.texts.get(path))

    def names(self, path: str) -> list[str]:
        below = [name.removeprefix(f"{path}/") for name in self.texts if name.startswith(f"{path}/")]
        return self._found(sorted({name.split("/")[0] for name in below}) or None)

    def resolve(self, path: str) -> str:
        return self._found(self.texts.get(f"-> {path}"))

    def run(self, command: str) -> str:
        return self._found(None)

    def _found(self, what: Any) -> Any:
        if what is None:
            raise FileNotFoundError
        return what


@pytest.mark.parametrize("parent", [None, "/sys/devices/pci0000:00/0000:00:0d.2"])
def test_our_devices_are_told_from_emulated_ones(parent: str | None) -> None:
    """They have no driver of a card, also where they hang on the cable; nor are they slower than TCP."""
    texts = {f"/sys/class/infiniband/rocep0/{name}": text for name, text in OURS.items()}
    if parent is not None:
        texts["-> /sys/class/infiniband/rocep0/device"] = parent
        texts["-> /sys/class/infiniband/rocep0/device/driver"] = "/sys/bus/pci/drivers/thunderbolt"
    (device,) = Probe(Files({"/proc/sys/kernel/ostype": "Linux\n", **texts})).inventory().rdma
    assert (device.driver, device.software) == ("ferrule_rdma", False)


OURS = {"node_type": "1: CA\n", "node_desc": "ferrule\n", "ports/1/state": "4: ACTIVE\n"}
PORT = Port("ferrule0", 1, "roce", gids=(Gid(1, "10.9.0.1", 24, 2),))


def fine(_: Port) -> None:
    """It opens."""


def refused(_: Port) -> None:
    raise OSError("cannot register 64 MiB of memory")


def test_check_is_loud_about_each_thing_that_keeps_rdma_away() -> None:
    assert usable(check(GOOD, Found((PORT,)), opener=fine))
    assert usable(check(GOOD, Found((PORT, change(PORT, device="mlx5_0", gids=()))), opener=fine)), "one will do"
    bad = {
        "there is no RDMA device": (GOOD, Found((), "there is no RDMA device"), ""),
        "mlx5_0 is no RDMA device": (GOOD, Found((PORT,)), "mlx5_0"),
        "none that leads": (GOOD, Found((change(PORT, gids=()),)), ""),
        "may be locked: 8 MiB": (on(GOOD, memlock_bytes=8 << 20), Found((PORT,)), ""),
    }
    for words, (state, found, device) in bad.items():
        checks = check(state, found, device, opener=fine)
        assert not usable(checks)
        assert [one for one in checks if words in one.what and one.cure], words
    assert not usable(check(GOOD, Found((PORT,)), opener=refused))


def test_the_package_is_the_same_each_time(tmp_path: Path) -> None:
    source = read_source()
    assert {"Makefile", "main.c", "ferrule_rdma.h"} <= source.files.keys()
    one, two = (build_deb(source, tmp_path / name) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    listed = subprocess.run(["dpkg-deb", "-c", one], capture_output=True, text=True, check=True, timeout=30).stdout
    for path in (f"/usr/src/ferrule-rdma-{source.version}/dkms.conf", "/usr/lib/modules-load.d/ferrule-rdma.conf"):
        assert f".{path}\n" in listed
    assert "root/root" in listed
    subprocess.run(["dpkg-deb", "--control", one, tmp_path / "control"], check=True, timeout=30)
    for script, holds in (("preinst", PLACE), ("postinst", source.version), ("prerm", source.version)):
        subprocess.run(["sh", "-n", tmp_path / "control" / script], check=True, timeout=30)
        assert holds in (tmp_path / "control" / script).read_text()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    fake = FakeMachine(tmp_path)
    monkeypatch.setattr(cli, "LIVE", fake.target)
    monkeypatch.setattr(cli, "_look", lambda: look(fake.target, INVENTORY))
    monkeypatch.setattr(cli.driver, "read_source", lambda: SOURCE)
    return fake


def test_the_commands_say_what_they_need(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["driver", *words])
        return done.exit_code, done.output

    monkeypatch.setattr(cli.os, "geteuid", lambda: 1000)
    code, output = run("install", "--force", "--yes")
    assert (code, 'sudo "$(command -v ferrule)" driver install --force' in output) == (11, True)
    assert run("install", "--dry-run")[0] == 0
    assert not machine.asked, "nothing was done"
    assert run("status")[0] == 1

    monkeypatch.setattr(cli.os, "geteuid", lambda: 0)
    assert run("install", "--yes")[0] == 0
    assert machine.loaded == SOURCE.version
    code, output = run("status", "--json")
    assert (code, json.loads(output)["loaded"]) == (0, SOURCE.version)
    assert run("uninstall", "--yes")[0] == 0
    assert run("uninstall")[1] == "Nothing of the driver is installed.\n"

    (machine.root / f"lib/modules/{KERNEL}/build/Makefile").unlink()
    code, output = run("install", "--yes")
    assert (code, f"linux-headers-{KERNEL}" in output) == (11, True)
