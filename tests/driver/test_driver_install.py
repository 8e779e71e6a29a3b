"""`ferrule driver install`: all of it or nothing, also after failures and power cuts, on a machine of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import INVENTORY, KERNEL, NEWER, SOURCE, FakeMachine, Killed

from ferrule.errors import DriverError
from ferrule.kmod import Source, install, look, plan_install, uninstall
from ferrule.kmod.files import LOAD, OPTIONS
from ferrule.kmod.record import PLACE

OLD, NEW = SOURCE.version, NEWER.version


def silent(_: str) -> None:
    """Says nothing."""


def put(machine: FakeMachine, source: Source = SOURCE) -> None:
    install(machine.target, source, INVENTORY, silent)


def take_away(machine: FakeMachine) -> bool:
    return uninstall(machine.target, INVENTORY, silent)


def commands(root: Path, *, before: Source | None, source: Source) -> int:
    """Number of commands that an installation takes."""
    machine = FakeMachine(root)
    if before is not None:
        put(machine, before)
    asked = len(machine.asked)
    put(machine, source)
    return len(machine.asked) - asked


def test_installs_once_and_takes_all_of_it_away(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    before = machine.files()
    put(machine)
    assert machine.loaded == OLD
    assert machine.installed == [OLD]
    assert {OPTIONS[1:], LOAD[1:], PLACE[1:], f"usr/src/ferrule-rdma-{OLD}/main.c"} <= machine.files()
    assert plan_install(look(machine.target, INVENTORY, root=True), SOURCE) == ()
    asked = list(machine.asked)
    put(machine)
    assert machine.asked == asked, "a second time changes nothing"
    assert take_away(machine)
    assert (machine.files(), machine.known, machine.loaded) == (before, {}, None)
    assert not take_away(machine)


def test_replaces_another_version(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    put(machine)
    put(machine, NEWER)
    assert (machine.loaded, machine.installed, list(machine.known)) == (NEW, [NEW], [NEW])
    assert not [path for path in machine.files() if OLD in path]
    assert take_away(machine)
    assert machine.known == {}


def test_whatever_fails_leaves_nothing(tmp_path: Path) -> None:
    steps = commands(tmp_path / "count", before=None, source=SOURCE)
    assert steps > 3
    for number in range(steps):
        machine = FakeMachine(tmp_path / str(number), fail_at=number)
        before = machine.files()
        with pytest.raises(DriverError, match="it does not want to"):
            put(machine)
        assert (machine.files(), machine.known, machine.loaded) == (before, {}, None), machine.asked


def test_whatever_fails_of_an_update_puts_the_old_one_back(tmp_path: Path) -> None:
    steps = commands(tmp_path / "count", before=SOURCE, source=NEWER)
    assert steps > 5
    for number in range(steps):
        machine = FakeMachine(tmp_path / str(number))
        put(machine)
        before = machine.files()
        machine.fail_at = len(machine.asked) + number
        with pytest.raises(DriverError, match="it does not want to"):
            put(machine, NEWER)
        assert (machine.loaded, machine.installed, list(machine.known)) == (OLD, [OLD], [OLD]), machine.asked
        assert machine.files() == before


@pytest.mark.parametrize("update", [False, True])
def test_after_a_power_cut_the_next_call_cleans_up(tmp_path: Path, update: bool) -> None:
    for number in range(commands(tmp_path / "count", before=SOURCE if update else None, source=NEWER)):
        for then in ("install", "uninstall"):
            machine = FakeMachine(tmp_path / f"{number}-{then}")
            empty = machine.files()
            if update:
                put(machine)
            machine.kill_at = len(machine.asked) + number
            with pytest.raises(Killed):
                put(machine, NEWER)
            machine.kill_at = -1
            if then == "install":
                put(machine, NEWER)
                assert (machine.loaded, machine.installed, list(machine.known)) == (NEW, [NEW], [NEW]), machine.asked
            take_away(machine)
            assert (machine.files(), machine.known, machine.loaded) == (empty, {}, None), machine.asked


def test_files_of_others_stay(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.place(LOAD[1:], "ferrule_rdma # mine\n")
    put(machine)
    machine.place(OPTIONS[1:], "options ferrule_rdma spin_us=5\n")
    assert take_away(machine)
    assert machine.target.read(LOAD) == "ferrule_rdma # mine\n"
    assert machine.target.read(OPTIONS) == "options ferrule_rdma spin_us=5\n"


def test_what_dkms_left_unsigned_is_taken_back(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.place("sys/module/module/parameters/sig_enforce", "Y\n")
    with pytest.raises(DriverError, match="did not sign"):
        put(machine)
    assert machine.known == {}
    machine.signer = "DKMS module signing key"
    put(machine)
    assert machine.loaded == OLD


def test_another_kernel_is_built_for_without_losing_the_first(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    put(machine)
    machine.known[OLD] = {"added"}  # as DKMS tells of a kernel that it has not built for
    machine.fail_at = len(machine.asked)
    with pytest.raises(DriverError, match=f"-k {KERNEL}"):
        put(machine)
    assert list(machine.known) == [OLD], "the failure does not take away what other kernels use"
    put(machine)
    assert machine.installed == [OLD]


def test_the_error_tells_what_the_compiler_said(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, fail_at=1)
    log = "  CC [M] main.o\nmain.c:7: error: implicit declaration of function\nmake: *** [main.o] Error 1\n"
    machine.place(f"var/lib/dkms/ferrule-rdma/{OLD}/build/make.log", log)
    with pytest.raises(DriverError, match="implicit declaration") as caught:
        put(machine)
    assert "CC [M]" not in str(caught.value)


def test_a_damaged_record_is_not_guessed_at(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.place(
        PLACE[1:], '{"schema": 1, "phase": "installed", "version": "../../etc", "previous": "", "written": []}'
    )
    with pytest.raises(DriverError, match="damaged"):
        take_away(machine)
