"""Guests of the VM lab: they boot, do their work, and go away, whatever happens."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferrule.errors import GuestError, LabError
from ferrule.lab.vm import PYTEST, Guest, RunningGuest, VmLab

pytestmark = [pytest.mark.slow, pytest.mark.vm]

DEADLINE = 240
"""Seconds for a guest that takes ten on a quiet machine."""


def test_script_gives_its_files_console_and_status(vm_lab: VmLab) -> None:
    script = "uname -r; cp /lab/given /results/back; mkdir /results/deep; echo $WORD > /results/deep/word; exit 7"
    guest = Guest(script=script, files={"/lab/given": bytes(range(256))}, env={"WORD": "it's here"})
    result = vm_lab.run(guest, DEADLINE)
    assert result.exit_code == 7
    assert result.files == {"back": bytes(range(256)), "deep/word": b"it's here\n"}
    assert vm_lab.kernel.release in result.console
    with pytest.raises(GuestError, match=rf"(?s)status 7.*{vm_lab.kernel.release}") as caught:
        result.check()
    assert caught.value.console == result.console


def test_guest_that_hangs_is_killed_at_its_deadline(vm_lab: VmLab) -> None:
    with vm_lab.boot(Guest(script="echo still here; read < /dev/ttyS0")) as guest:
        wait_for_words(guest, "still here")
        with pytest.raises(GuestError, match=r"(?s)within 0\.5 s and was killed.*still here"):
            guest.wait(0.5)
        with pytest.raises(ProcessLookupError):
            os.kill(guest.pid, 0)


def test_guest_that_crashes_says_so(vm_lab: VmLab) -> None:
    with pytest.raises(GuestError, match="the guest crashed: sysrq triggered crash"):
        vm_lab.run(Guest(script="echo c > /proc/sysrq-trigger"), DEADLINE)


def test_guests_run_side_by_side(vm_lab: VmLab) -> None:
    guests = [vm_lab.boot(Guest(script=f"echo {name} > /results/name", cpus=1)) for name in ("left", "right")]
    try:
        assert [guest.wait(DEADLINE).check().files["name"] for guest in guests] == [b"left\n", b"right\n"]
    finally:
        for guest in guests:
            guest.close()


def test_guest_dies_with_its_parent(vm_lab: VmLab) -> None:
    program = (
        "from ferrule.lab.vm import Guest, VmLab\n"
        "guest = VmLab().boot(Guest(script='read < /dev/ttyS0'))\n"
        "print(guest.pid, flush=True)\n"
        "guest.wait(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        end = os.pidfd_open(pid)
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}/comm").read_text().startswith("python"):  # it becomes QEMU in a moment
            assert time.monotonic() < deadline, "QEMU did not start"
            assert not ended(end, 0.02)
        parent.send_signal(signal.SIGKILL)
    try:
        assert ended(end, 20), f"QEMU ({pid}) outlived its parent"
    finally:
        os.close(end)


def test_rdma_devices_come_up(vm_lab: VmLab) -> None:
    script = """
        set -e
        ip link add rail0 type dummy; ip link set rail0 mtu 4200 up; ip addr add 10.0.0.1/24 dev rail0
        ip link add rail1 type dummy; ip link set rail1 up; ip addr add 10.0.1.1/24 dev rail1
        rdma link add rxe0 type rxe netdev rail0
        rdma link add siw0 type siw netdev rail1
        rdma -j link > /results/links.json
        ibv_devices > /results/devices
        wait_until() { # the program $1 is still alive, and at last the rest succeeds
            server=$1; shift
            until "$@" > /dev/null; do kill -0 "$server"; sleep 0.1; done
        }
        port_open() { cat /proc/net/tcp* | grep -q ':4853 .* 0A '; } # 18515, LISTEN
        listener() { rdma resource show cm_id | grep -q 'state LISTEN'; }
        pingpong() {
            timeout 60 "$@" &
            wait_until $! port_open
            timeout 60 "$@" localhost
            wait $!
        }
        pingpong ibv_rc_pingpong -d rxe0 -g 1 -n 20
        pingpong ibv_uc_pingpong -d rxe0 -g 1 -n 20
        timeout 60 rping -s -a 10.0.1.1 -C 3 &
        wait_until $! listener
        timeout 60 rping -c -a 10.0.1.1 -C 3
        wait $!
    """
    result = vm_lab.run(Guest(script=script, modules=["rdma_rxe", "siw", "rdma_ucm"]), DEADLINE).check()
    links = {link["ifname"]: link["state"] for link in json.loads(result.files["links.json"])}
    assert links == {"rxe0": "ACTIVE", "siw0": "ACTIVE"}
    assert b"rxe0" in result.files["devices"]
    assert b"siw0" in result.files["devices"]


def test_ranks_in_a_guest_reduce_over_tcp(vm_lab: VmLab) -> None:
    rank = """
import numpy
import ferrule.fabric as fabric

group = fabric.init()
x = numpy.arange(1000, dtype=numpy.float32) * (group.rank + 1)
group.all_reduce(x)
assert (x == numpy.arange(1000) * 3).all()
group.barrier()
"""
    launch = """\
#!/usr/local/bin/python3
import sys
from ferrule.launch import LocalLauncher

env = {"FERRULE_TRANSPORT": "tcp", "FERRULE_TIMEOUT": "60s"}
with LocalLauncher([sys.executable, "/lab/rank.py"], 2, env=env) as job:
    sys.exit(job.wait(120).exit_code)
"""
    guest = Guest(script=launch, python=["numpy", "ferrule"], files={"/lab/rank.py": rank})
    vm_lab.run(guest, DEADLINE).check()


def test_pytest_runs_in_a_guest(vm_lab: VmLab) -> None:
    tests = {
        "/tests/test_pass.py": "def test_pass(): pass\n",
        "/tests/test_fail.py": "def test_fail(): assert 1 == 2\n",
    }
    guest = Guest(script="cd /tests && python3 -m pytest -q -p no:cacheprovider", python=PYTEST, files=tests)
    result = vm_lab.run(guest, DEADLINE)
    assert result.exit_code == 1
    assert "1 failed, 1 passed" in result.console


def test_guest_that_stays_up_takes_commands(vm_lab: VmLab) -> None:
    with vm_lab.boot(Guest(script="echo up > /results/up", name="box", sessions=2, cpus=1)) as guest:
        assert guest.check("hostname", DEADLINE) == "box\n"
        done = guest.run("echo out; echo err >&2; exit 4", DEADLINE)
        assert (done.exit_code, done.output, done.errors) == (4, "out\n", "err\n")
        with pytest.raises(GuestError, match=r"'read < /dev/ttyS0' took longer than 0\.5 s"):
            guest.run("read < /dev/ttyS0", 0.5)
        with pytest.raises(GuestError, match="status 3 and said: no"):
            guest.check("echo no; exit 3", DEADLINE)
        assert guest.check("echo still", DEADLINE) == "still\n"
        assert guest.shut_down(DEADLINE).check().files == {"up": b"up\n"}
        with pytest.raises(GuestError, match="went down"):
            guest.run("true", DEADLINE)


def test_what_cannot_be_had_is_refused_by_name(vm_lab: VmLab, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no module no_such_driver"):
        vm_lab.boot(Guest(script="", modules=["no_such_driver"]))
    with pytest.raises(LabError, match="Python package no_such_package"):
        vm_lab.boot(Guest(script="", python=["no_such_package"]))
    with pytest.raises(LabError, match=r"/lab/x should come from .*/nothing"):
        vm_lab.boot(Guest(script="", files={"/lab/x": tmp_path / "nothing"}))


def wait_for_words(guest: RunningGuest, words: str) -> None:
    deadline = time.monotonic() + DEADLINE
    end = os.pidfd_open(guest.pid)
    try:
        while words not in guest.console():
            assert not ended(end, 0.05), guest.console()
            assert time.monotonic() < deadline, guest.console()
    finally:
        os.close(end)


def ended(pidfd: int, seconds: float) -> bool:
    """Whether a process ends within ``seconds``."""
    return bool(select.select([pidfd], [], [], seconds)[0])
