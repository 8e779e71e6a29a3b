"""``ferrule doctor --fix`` and ``--undo``: what is shown, asked and done. The machine is a recorded one."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.doctor import app as doctor
from ferrule.cli.doctor import fix as doctor_fix
from ferrule.cli.main import app
from ferrule.links import Inventory, Probe
from ferrule.links.doctor import diagnose
from ferrule.links.doctor.fix import Target

TREES = Path(__file__).parents[1] / "links" / "trees"


class Machine:
    """A recorded machine whose MTU really changes, and nothing else."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, root_user: bool = True) -> None:
        self.asked: list[str] = []
        self.inventory = Probe.recorded(TREES / "strix-halo-a.json").inventory()
        self.works = True
        (root / "run").mkdir()
        monkeypatch.setattr(doctor, "Target", lambda: Target(root, self.run))
        monkeypatch.setattr(doctor_fix, "_look", lambda: (self.inventory, diagnose([self.inventory])))
        monkeypatch.setattr(doctor_fix, "_SETTLE_SECONDS", 0.0)
        monkeypatch.setattr(doctor_fix, "_is_root", lambda: root_user)

    def run(self, argv: Sequence[str]) -> tuple[int, str]:
        mtu = self.inventory.netdev("thunderbolt1").mtu  # type: ignore[union-attr]
        if argv[:3] == ("ip", "link", "show"):
            return 0, f"7: thunderbolt1: mtu {mtu} qdisc"
        self.asked.append(shlex.join(argv))
        if not self.works:
            return 2, "RTNETLINK answers: no"
        if "mtu" in argv:
            self.inventory = with_mtu(self.inventory, int(argv[-1]))
        return 0, ""


def with_mtu(inventory: Inventory, mtu: int) -> Inventory:
    devices = (dataclasses.replace(one, mtu=mtu) if one.name == "thunderbolt1" else one for one in inventory.netdevs)
    return dataclasses.replace(inventory, netdevs=tuple(devices))


def run(*words: str, answers: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words], input=answers, env={"NO_COLOR": "1", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_fix_shows_asks_does_and_looks_again_and_undo_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    conf = tmp_path / "etc/NetworkManager/conf.d/90-ferrule-mtu-thunderbolt1.conf"
    code, told = run("--fix", answers="y\n")
    assert code == 1  # the cable still has to be replugged
    assert told.index("ip link set dev thunderbolt1 mtu 65520") < told.index("Do it?")
    assert "done, and the finding is gone" in told
    assert "mtu-small" not in told.partition("the finding is gone")[2]
    assert machine.asked == ["ip link set dev thunderbolt1 mtu 65520", "nmcli general reload conf"]
    assert conf.exists()

    code, told = run("--undo", "--yes")
    assert code == 0
    assert "undone" in told
    assert machine.asked[2:] == ["nmcli general reload conf", "ip link set dev thunderbolt1 mtu 1500"]
    assert not conf.exists()
    assert run("--undo") == (0, "Everything is undone already.\n")


def test_no_is_the_answer_that_is_taken_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    code, told = run("--fix", answers="\n")
    assert (code, machine.asked) == (1, [])
    assert "mtu-small" in told.partition("Do it?")[2]
    assert run("--undo") == (0, "Nothing was fixed here, so there is nothing to undo.\n")


def test_a_step_that_fails_stops_and_undo_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.works = False
    code, told = run("--fix", answers="y\ny\n")
    assert code == 8
    assert "failed: `ip link set dev thunderbolt1 mtu 65520` failed: RTNETLINK answers: no" in told
    assert "Undo what was done of it?" in told
    assert run("--undo") == (0, "Everything is undone already.\n")
    assert "ferrule doctor --undo" in run("--fix", "--yes")[1]


def test_without_root_it_says_so_and_what_it_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, root_user=False)
    code, told = run("--fix", "--yes")
    assert code == 8
    assert "ip link set dev thunderbolt1 mtu 65520" in told
    assert "so it needs root, and nothing was done; run it again with sudo" in re.sub(r"\s+", " ", told)
    assert machine.asked == []


def test_where_nothing_can_be_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.inventory = Probe.recorded(TREES / "mac-studio-1.json").inventory()
    code, told = run("--fix", "--yes")
    assert code == 2
    assert told.startswith("Nothing that this can fix.")
    assert "mac-forbidden-port" in told


@pytest.mark.parametrize(
    "flags", [("--fix", "--undo"), ("--fix", "--host", "x"), ("--undo", "--tree", "x"), ("--fix", "--json"), ("--yes",)]
)
def test_only_one_way_and_only_this_machine(flags: tuple[str, ...]) -> None:
    code, told = run(*flags)
    assert code == 3
    assert "change this machine" in told
