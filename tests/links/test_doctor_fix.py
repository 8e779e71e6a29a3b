"""Repairs by `ferrule doctor --fix`, and that all of them can be undone: later, after a failure, and after a crash."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_doctor import read
from test_doctor_checks import CX3, E810, STRIX, bare, net, peer, without_module

from ferrule.errors import LinkError
from ferrule.lab import Lab, pair
from ferrule.links import Inventory, NetDevice
from ferrule.links.doctor import diagnose
from ferrule.links.doctor.fix import Command, Fix, Journal, NewFile, Step, Target, apply, plan_fixes, undo
from ferrule.links.doctor.fix.persist import give_address, set_mtu
from ferrule.links.doctor.fix.plan import choose_address
from ferrule.links.types.machine import Service
from ferrule.links.types.net import NetAddress, NetManager

change = dataclasses.replace


@dataclass
class Recorder:
    """Runs nothing; remembers what it was asked for. ``fail_at``: the number of the command that fails."""

    fail_at: int = -1
    asked: list[str] = field(default_factory=list)
    mtu: int = 65520

    def __call__(self, argv: Sequence[str]) -> tuple[int, str]:
        if tuple(argv[:3]) == ("ip", "link", "show"):
            return 0, f"7: {argv[-1]}: <UP> mtu {self.mtu} qdisc"
        self.asked.append(shlex.join(argv))
        if len(self.asked) - 1 == self.fail_at:
            return 1, "it does not want to"
        return (1, "disabled") if argv[1] == "is-enabled" else (0, "")


def silent(_: str) -> None:
    """Says nothing."""


def files(root: Path) -> dict[str, str]:
    found = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}
    return {name: text for name, text in found.items() if not name.startswith("var/lib/ferrule")}


def fixes_of(inventory: Inventory) -> dict[str, Fix]:
    return {one.finding: one for one in plan_fixes(inventory, diagnose([inventory]))}


def no_manager(inventory: Inventory) -> Inventory:
    services = tuple(Service(one.name, "inactive") for one in inventory.services)
    return change(kept(inventory, None), services=services)


def kept(inventory: Inventory, manager: NetManager | None) -> Inventory:
    return change(inventory, netdevs=tuple(change(one, manager=manager) for one in inventory.netdevs))


def kept_alone(inventory: Inventory, manager: NetManager) -> Inventory:
    """Only thunderbolt1 is."""
    netdevs = (change(one, manager=manager if one.name == "thunderbolt1" else None) for one in inventory.netdevs)
    return change(inventory, netdevs=tuple(netdevs))


MANAGERS = {
    "systemd-networkd": NetManager("systemd-networkd"),
    "networkd-file": NetManager("systemd-networkd", "/etc/systemd/network/cables.network"),
    "netplan": NetManager("netplan"),
    "ifupdown": NetManager("ifupdown"),
}


def all_fixes() -> list[Fix]:
    machines = [
        net(STRIX, "thunderbolt1", addresses=()),
        no_manager(net(STRIX, "thunderbolt1", addresses=())),
        *(kept_alone(net(STRIX, "thunderbolt1", addresses=()), manager) for manager in MANAGERS.values()),
        *(kept_alone(read(STRIX), manager) for manager in MANAGERS.values()),
        net(STRIX, "thunderbolt1", enabled=False),
        change(peer(STRIX, netdevs=()), machine=bare(STRIX)),
        read(E810),
        change(without_module(E810, "irdma"), rdma=()),
        without_module(E810, "ib_uverbs"),
        read(CX3),
    ]
    return [fix for one in machines for fix in plan_fixes(one, diagnose([one]))]


ALL = list({one.steps: one for one in all_fixes()}.values())


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are slow, and no test takes the power away."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def test_each_fault_that_commands_cure_has_a_fix() -> None:
    assert {one.finding for one in ALL} == {
        *("thunderbolt-net-missing", "rdma-driver-missing", "rdma-no-uverbs", "interface-off"),
        *("no-address", "mtu-small", "rdma-no-subnet-manager", "memlock-small"),
    }


def test_what_a_fix_writes_and_runs(tmp_path: Path) -> None:
    run = Recorder()
    target, journal = Target(tmp_path, run), Journal(tmp_path / "state")
    fixes = fixes_of(net(STRIX, "thunderbolt1", addresses=()))
    for name in ("no-address", "mtu-small"):
        apply(fixes[name], target, journal, silent)
    keyfile = tmp_path / "etc/NetworkManager/system-connections/ferrule-thunderbolt1.nmconnection"
    lines = keyfile.read_text().splitlines()
    address = choose_address(read(STRIX), change(thunderbolt1(), addresses=()))
    assert f"address1={address}" in lines
    assert "interface-name=thunderbolt1" in lines
    assert keyfile.stat().st_mode & 0o777 == 0o600
    conf = (tmp_path / "etc/NetworkManager/conf.d/90-ferrule-mtu-thunderbolt1.conf").read_text()
    assert "match-device=interface-name:thunderbolt1\nethernet.mtu=65520\n" in conf
    assert (
        run.asked[0] == "nmcli connection load /etc/NetworkManager/system-connections/ferrule-thunderbolt1.nmconnection"
    )
    assert run.asked[1].startswith("nmcli connection up uuid ")
    assert run.asked[2:] == ["ip link set dev thunderbolt1 mtu 65520", "nmcli general reload conf"]
    assert [entry.complete for entry in journal.entries()] == [True, True]


def test_memlock_modules_and_opensm(tmp_path: Path) -> None:
    run = Recorder()
    target, journal = Target(tmp_path, run), Journal(tmp_path / "state")
    for name, inventory in (
        ("memlock-small", read(E810)),
        ("rdma-driver-missing", change(without_module(E810, "irdma"), rdma=())),
        ("rdma-no-subnet-manager", read(CX3)),
    ):
        apply(fixes_of(inventory)[name], target, journal, silent)
    assert "* hard memlock unlimited\n" in (tmp_path / "etc/security/limits.d/90-ferrule-memlock.conf").read_text()
    manager = (tmp_path / "etc/systemd/system.conf.d/90-ferrule-memlock.conf").read_text()
    assert manager.endswith("[Manager]\nDefaultLimitMEMLOCK=infinity\n")
    assert (tmp_path / "etc/modules-load.d/ferrule-irdma.conf").read_text().endswith("\nirdma\n")
    assert run.asked == ["modprobe irdma", "systemctl is-enabled opensm", "systemctl enable --now opensm"]


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.finding)
def test_undo_takes_back_all_of_it_and_can_be_done_by_another_process(tmp_path: Path, fix: Fix) -> None:
    run = Recorder()
    target = Target(tmp_path, run)
    apply(fix, target, Journal(target.state), silent)
    assert run.asked or files(tmp_path)
    (entry,) = Journal(target.state).entries()
    assert entry.fix == fix
    run.asked.clear()
    undo(entry, target, Journal(target.state), silent)
    assert files(tmp_path) == {}
    assert run.asked == [shlex.join(step.undo.argv) for step in reversed(fix.steps) if isinstance(step.undo, Command)]
    assert Journal(target.state).entries() == ()


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.finding)
def test_a_step_that_fails_stops_and_what_was_done_can_be_undone(tmp_path: Path, fix: Fix) -> None:
    commands = [step.do for step in fix.steps if step.do is not None and not isinstance(step.do, NewFile)]
    for number in range(len(commands)):
        run = Recorder(fail_at=number)
        target = Target(tmp_path / str(number), run)
        with pytest.raises(LinkError, match="it does not want to"):
            apply(fix, target, Journal(target.state), silent)
        assert len(run.asked) == number + 1
        run.fail_at = -1
        (entry,) = Journal(target.state).entries()
        assert not entry.complete
        undo(entry, target, Journal(target.state), silent)
        assert files(target.root) == {}
        assert Journal(target.state).entries() == ()


class Crash(BaseException):
    """The power went."""


class CrashingJournal(Journal):
    """Ends the process before or after the write of that number."""

    def __init__(self, folder: Path, at: int, *, before: bool) -> None:
        super().__init__(folder)
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "before", before)
        object.__setattr__(self, "writes", 0)

    def write(self, entry: object) -> None:
        number = self.writes  # type: ignore[attr-defined]
        object.__setattr__(self, "writes", number + 1)
        if number == self.at and self.before:  # type: ignore[attr-defined]
            raise Crash
        super().write(entry)  # type: ignore[arg-type]
        if number == self.at:  # type: ignore[attr-defined]
            raise Crash


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.finding)
def test_after_a_crash_at_any_moment_all_can_be_undone(tmp_path: Path, fix: Fix, before: bool) -> None:
    for at in range(len(fix.steps) + 2):
        run = Recorder()
        target = Target(tmp_path / str(at), run)
        with pytest.raises(Crash):
            apply(fix, target, CrashingJournal(target.state, at, before=before), silent)
        done = list(run.asked)
        for entry in Journal(target.state).entries():
            undo(entry, target, Journal(target.state), silent)
        assert files(target.root) == {}
        for step in fix.steps:
            if isinstance(step.do, Command) and shlex.join(step.do.argv) in done and isinstance(step.undo, Command):
                assert shlex.join(step.undo.argv) in run.asked[len(done) :]


def test_what_is_there_already_is_not_touched(tmp_path: Path) -> None:
    theirs = tmp_path / "etc/security/limits.d/90-ferrule-memlock.conf"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine\n")
    target = Target(tmp_path, Recorder())
    with pytest.raises(LinkError, match="not of our making"):
        apply(fixes_of(read(E810))["memlock-small"], target, Journal(target.state), silent)
    assert files(tmp_path) == {"etc/security/limits.d/90-ferrule-memlock.conf": "mine\n"}
    assert Journal(target.state).entries() == ()
    with pytest.raises(LinkError, match="not of our making"):
        target.create("/etc/security/limits.d/90-ferrule-memlock.conf", "ours", 0o644)
    assert theirs.read_text() == "mine\n"


def test_what_was_changed_since_stays(tmp_path: Path) -> None:
    run = Recorder()
    target = Target(tmp_path, run)
    apply(fixes_of(no_manager(read(STRIX)))["mtu-small"], target, Journal(target.state), silent)
    apply(fixes_of(read(E810))["memlock-small"], target, Journal(target.state), silent)
    conf = tmp_path / "etc/security/limits.d/90-ferrule-memlock.conf"
    conf.write_text("mine\n")
    run.mtu = 9000
    run.asked.clear()
    told: list[str] = []
    for entry in reversed(Journal(target.state).entries()):
        undo(entry, target, Journal(target.state), told.append)
    assert files(tmp_path) == {"etc/security/limits.d/90-ferrule-memlock.conf": "mine\n"}
    assert run.asked == []
    assert "thunderbolt1 was changed since; it stays" in told
    assert "/etc/security/limits.d/90-ferrule-memlock.conf was changed since; it stays" in told


def test_an_undo_that_fails_is_kept_for_another_try(tmp_path: Path) -> None:
    run = Recorder()
    target, journal = Target(tmp_path, run), Journal(tmp_path / "state")
    apply(fixes_of(without_module(E810, "ib_uverbs"))["rdma-no-uverbs"], target, journal, silent)
    run.fail_at = len(run.asked)
    for _ in range(2):
        with pytest.raises(LinkError, match="modprobe -r ib_uverbs"):
            undo(journal.entries()[0], target, journal, silent)
        run.fail_at = len(run.asked)
    run.fail_at = -1
    undo(journal.entries()[0], target, journal, silent)
    assert journal.entries() == ()


def test_a_subnet_manager_that_was_set_up_already_is_left_alone(tmp_path: Path) -> None:
    asked: list[str] = []

    def run(argv: Sequence[str]) -> tuple[int, str]:
        asked.append(shlex.join(argv))
        return 0, "enabled"

    target = Target(tmp_path, run)
    with pytest.raises(LinkError, match="says 'enabled'"):
        apply(fixes_of(read(CX3))["rdma-no-subnet-manager"], target, Journal(target.state), silent)
    for entry in Journal(target.state).entries():
        undo(entry, target, Journal(target.state), silent)
    assert asked == ["systemctl is-enabled opensm"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 9}', '{"schema": 1, "fix": {"steps": [{"do": 3}]}}'])
def test_a_damaged_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.json").write_text(text)
    with pytest.raises(LinkError, match=r"damaged|another version"):
        Journal(tmp_path).entries()


def test_a_journal_that_others_can_write_is_refused(tmp_path: Path) -> None:
    target = Target(tmp_path, Recorder())
    apply(fixes_of(read(E810))["memlock-small"], target, Journal(target.state), silent)
    (target.state / "1.json").chmod(0o666)
    with pytest.raises(LinkError, match="not trusted"):
        Journal(target.state).entries()


def thunderbolt1(name: str = STRIX) -> NetDevice:
    found = read(name).netdev("thunderbolt1")
    assert found is not None
    return found


def test_both_ends_choose_neighbours_in_a_subnet_of_each_cable() -> None:
    chosen = {}
    for name in ("strix-halo-a", "strix-halo-b"):
        inventory = read(name)
        bare_devices = tuple(change(one, addresses=()) for one in inventory.netdevs)
        inventory = change(inventory, netdevs=bare_devices)
        for device in ("thunderbolt0", "thunderbolt1"):
            one = inventory.netdev(device)
            assert one is not None
            chosen[name, device] = choose_address(inventory, one)
    for device in ("thunderbolt0", "thunderbolt1"):
        ends = [chosen[name, device] for name in ("strix-halo-a", "strix-halo-b")]
        nets = {str(one).rpartition(".")[0] for one in ends}
        assert len(nets) == 1
        assert {str(one).rpartition(".")[2] for one in ends} == {"1/24", "2/24"}
    assert len(set(chosen.values())) == 4


def test_a_subnet_that_is_in_use_is_not_chosen() -> None:
    inventory = read(STRIX)
    free = choose_address(inventory, change(thunderbolt1(), addresses=()))
    assert free is not None
    taken = NetAddress(free.partition("/")[0], 24, "global")
    assert choose_address(net(STRIX, "enp191s0", addresses=(taken,)), thunderbolt1()) is None


def test_a_mac_is_left_alone() -> None:
    assert plan_fixes(read("mac-studio-1"), diagnose([read("mac-studio-1")])) == ()


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_address_and_mtu_are_really_set_and_taken_back(tmp_path: Path) -> None:
    with Lab(pair()) as lab:
        (device,) = lab.interfaces(0)

        def run(argv: Sequence[str]) -> tuple[int, str]:
            process = lab.popen(0, list(argv), stdout=-1, stderr=-2, text=True)
            told, _ = process.communicate(timeout=30)
            return process.returncode, told

        def shown() -> str:
            return run(("ip", "address", "show", "dev", device))[1]

        target, journal = Target(tmp_path, run), Journal(tmp_path / "state")
        before = shown()
        assert "mtu 1500 " in before
        assert "10.99.0.1/24" not in before
        apply(fix_of(give_address(device, "10.99.0.1/24")), target, journal, silent)
        apply(fix_of(set_mtu(device, 1500, 9000)), target, journal, silent)
        assert "mtu 9000 " in shown()
        assert "10.99.0.1/24" in shown()
        with pytest.raises(LinkError, match="ip address add"):
            apply(fix_of(give_address(device, "10.99.0.1/24")), target, journal, silent)
        done, _, failed = journal.entries()
        undo(failed, target, journal, silent)
        assert "10.99.0.1/24" in shown()
        undo(done, target, journal, silent)
        assert "10.99.0.1/24" not in shown()
        undo(journal.entries()[0], target, journal, silent)
        assert shown() == before


def fix_of(steps: tuple[Step, ...]) -> Fix:
    return Fix("no-address", "cable", "a fix", steps)
