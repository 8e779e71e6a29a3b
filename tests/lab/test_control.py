"""Labs that stay up: their holder, what is asked of it, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import ConfigError, LabError
from ferrule.lab.daemon import registry
from ferrule.lab.daemon.client import ask
from ferrule.lab.daemon.messages import Console
from ferrule.lab.netns import control
from ferrule.lab.netns.iproute import batch
from ferrule.lab.netns.namespace import Namespace
from ferrule.lab.netns.status import LabStatus

SECONDS = 20.0
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Labs of a test are in a directory of its own. The path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="lab") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made)
        control.down()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a thread of it still runs: until the last one ends, a killed process has its files and locks."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (thread / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                    return True
    return False


def start(lab: str, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    entry = control.enter(lab, host)
    return subprocess.Popen([*entry.prefix, *argv], env=os.environ | entry.env, text=True, **options)


def run(lab: str, host: str, *argv: str) -> str:
    process = start(lab, host, argv, stdout=subprocess.PIPE)
    out: str = process.communicate(timeout=SECONDS)[0]
    return out


def ours() -> tuple[list[str], list[int], list[str]]:
    """Interfaces of this machine, processes of this test's labs, and their directories."""
    mark = f"XDG_RUNTIME_DIR={os.environ['XDG_RUNTIME_DIR']}".encode()
    marked = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                marked.append(int(process.name))
    interfaces = sorted(line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return (
        interfaces,
        [pid for pid in marked if alive(pid) and pid != os.getpid()],
        sorted(path.name for path in registry.folder().iterdir() if path.is_dir()),
    )


class Witness:
    """Sees whether the hosts of a lab still exist: an interface ends when its other end, in a host, does."""

    def __init__(self, status: LabStatus) -> None:
        self._namespace = Namespace()
        lines = []
        for number, host in enumerate(status.hosts):
            name = f"thread{number}"
            lines.append(f"link add name {name} type veth peer name {name} netns {host.path}")
        batch(self._namespace, lines)
        assert not self.hosts_are_gone()

    def hosts_are_gone(self) -> bool:
        with self._namespace.entered():
            return len(Path("/proc/thread-self/net/dev").read_text().splitlines()) == 3  # two of headings, and lo

    def close(self) -> None:
        self._namespace.close()


PROBE = """
import socket, sys, time
address, port, count, wait = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); link.settimeout(wait)
got, least = 0, 9.0
for number in range(count):
    begin = time.monotonic()
    try:
        link.sendto(b"%d" % number, (address, port))
        while link.recv(100) != b"%d" % number: pass
    except OSError: continue
    got, least = got + 1, min(least, time.monotonic() - begin)
print(got, least)
"""
ECHO = """
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); link.bind(("0.0.0.0", 4000)); print("ready", flush=True)
while True:
    words, whence = link.recvfrom(100)
    try: link.sendto(words, whence)
    except OSError: pass
"""


def probe(lab: str, address: str, count: int = 5, wait: float = 0.2) -> tuple[int, float]:
    """Number of datagrams, of ``count`` from the first host, that came back, and the least seconds that one took."""
    got, least = run(lab, "strix-1", sys.executable, "-c", PROBE, address, "4000", str(count), str(wait)).split()
    return int(got), float(least)


def test_a_lab_stays_is_used_fails_and_ends() -> None:
    before = ours()
    status = control.up("two-strix")
    witness = Witness(status)
    assert [host.name for host in status.hosts] == ["strix-1", "strix-2"]
    assert [cable.kind for cable in status.cables] == ["usb4-40g", "usb4-40g"]
    words = run("two-strix", "strix-2", "sh", "-c", "hostname; echo $FERRULE_LAB $FERRULE_HOST_ID; ls /sys/class/net")
    assert words.split() == ["strix-2", "two-strix", "strix-2", "cable0", "cable1", "lo", "thread1"]
    names = run("two-strix", "strix-1", "getent", "hosts", "strix-2")
    assert names.split()[0] == status.hosts[1].addresses["cable0"]

    echo = start("two-strix", "strix-2", [sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert echo.stdout is not None
    assert echo.stdout.readline() == "ready\n"
    addresses = list(status.hosts[1].addresses.values())

    def strike(*words: str, sender: str | None = None) -> list[str]:
        return list(control.fault("two-strix", "cable0", words, sender).faults)

    first, second = addresses

    def heal() -> None:
        """After a carrier comes back the kernel takes up to a second to use it."""
        strike("clear")
        until(lambda: probe("two-strix", first, 1)[0] == 1, "all is well again")

    got, least = probe("two-strix", first)
    assert got == 5
    assert least >= 80e-6
    assert strike("delay=5ms", "jitter=0") == ["delay=5 ms jitter=0 ns"]
    assert probe("two-strix", first)[1] >= 10e-3
    assert probe("two-strix", second)[1] < 10e-3
    assert strike("clear") == []
    assert strike("loss=100%") == ["loss=100 %"]
    assert probe("two-strix", first)[0] == 0
    heal()
    for fault, said in (
        (("cut",), "cut"),
        (("unplug",), "cut"),
        (("dark",), "dark"),
        (("stall",), "stalled"),
    ):
        assert strike(*fault) == [said]
        assert probe("two-strix", first, 2)[0] == 0
        assert probe("two-strix", second)[0] == 5
        heal()
    assert strike("cut", sender="strix-2") == ["nothing arrives from strix-2"]
    assert probe("two-strix", first, 2)[0] == 0
    counters = control.status("two-strix").cables[0].ends["strix-2"].counters
    assert counters["cut"] >= 1
    strike("clear")
    strike("unplug")
    assert strike("replug") == []
    until(lambda: probe("two-strix", first, 1)[0] == 1, "it is plugged in again")
    assert strike("retrain-half") == ["trained to 0.5 of its speed"]
    assert strike("collapse") == ["collapse=0.6", "trained to 0.5 of its speed"]

    with pytest.raises(ConfigError, match="no cable 'cable7', only cable0, cable1"):
        control.fault("two-strix", "cable7", ["stall"])
    with pytest.raises(ConfigError, match="no host 'mac', only strix-1"):
        control.fault("two-strix", "cable0", ["cut"], "mac")
    with pytest.raises(LabError, match="no kernels of their own"):
        ask(registry.folder() / "two-strix", Console("strix-1"), str)
    with pytest.raises(ConfigError, match="has no host 'mac'"):
        control.enter("two-strix", "mac")
    assert control.labs()[0][0].hosts[1].processes == 1
    assert control.down() == ["two-strix"]
    assert echo.wait(SECONDS) == -signal.SIGKILL
    echo.stdout.close()
    until(lambda: ours() == before, "all is as it was")
    until(witness.hosts_are_gone, "the hosts are gone")
    witness.close()


def test_two_labs_at_once_do_not_meet() -> None:
    one = control.up("two-strix", name="one")
    other = control.up("half-trained", name="other")
    assert one.hosts[0].addresses == other.hosts[0].addresses
    with pytest.raises(ConfigError, match="a lab 'one' already"):
        control.up("two-pc-10g", name="one")
    with pytest.raises(ConfigError, match=r"several labs are up \(one, other\)"):
        control.choose(None)
    assert control.choose("other") == "other"
    with pytest.raises(ConfigError, match="'third' is not up; up are one, other"):
        control.choose("third")
    echo = start("other", "strix-2", [sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert echo.stdout is not None
    assert echo.stdout.readline() == "ready\n"
    address = one.hosts[1].addresses["cable0"]
    assert probe("one", address, 2)[0] == 0
    assert probe("other", address, 2)[0] == 2
    assert control.down(["other"]) == ["other"]
    echo.wait(SECONDS)
    echo.stdout.close()
    assert [lab.name for lab in control.labs()[0]] == ["one"]


def test_kill_9_of_the_holder_leaves_nothing_after_the_next_look() -> None:
    before = ours()
    status = control.up("two-strix")
    witness = Witness(status)
    sleeper = start("two-strix", "strix-1", ["sh", "-c", "sleep 1000 & exec sleep 1000"])
    # One that hides the mark of its lab.
    hidden = start("two-strix", "strix-2", ["env", "-i", "/bin/sleep", "1000"])
    until(lambda: sum(host.processes for host in control.status("two-strix").hosts) == 3, "all sleep")
    bystander = subprocess.Popen(["sleep", "1000"], env=os.environ | {"FERRULE_LAB": "two-strix"})
    os.kill(status.pid, signal.SIGKILL)
    until(lambda: not alive(status.pid), "the holder is dead")
    with pytest.raises(LabError, match="does not answer"):
        control.status("two-strix")

    def found() -> bool:
        with suppress(LabError):  # its kernel may still be closing what it had open
            return control.labs() == ([], ["two-strix"])
        return False

    until(found, "what it left is found")
    for process in (sleeper, hidden):
        assert process.wait(SECONDS) == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait(SECONDS)
    until(lambda: ours() == before, "all is as it was")
    until(witness.hosts_are_gone, "the hosts are gone")
    witness.close()
    assert control.down() == []


@pytest.mark.parametrize("moment", [0.02, 0.2, 0.35, 0.5, 0.8])
def test_kill_9_of_up_at_any_moment_leaves_nothing(moment: float) -> None:
    before = ours()
    program = "from ferrule.lab.netns import control; control.up('two-strix')"
    starter = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    time.sleep(moment)  # the moment is what is tested
    starter.kill()
    starter.wait(SECONDS)
    # Its holder may have been born, and comes up or notices nothing; either way it can be ended.
    control.down()
    until(lambda: ours() == before, "all is as it was")


def test_what_is_not_a_request_is_answered_and_a_silent_caller_left() -> None:
    control.up("two-strix")
    path = str(registry.folder() / "two-strix" / registry.CONTROL)
    assert Path(path).stat().st_mode & 0o777 == 0o700
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    for words in (
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"do": "dance"}\n',
        b'{"do": "fault"}\n',
        b'{"do": "status", "more": 1}\n',
    ):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            caller.sendall(words)
            assert "error" in json.loads(caller.makefile().readline())
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(path)
    assert control.status("two-strix").name == "two-strix"


def test_a_folder_of_others_is_refused(folder: Path) -> None:
    registry.folder()
    (folder / "ferrule").chmod(0o755)
    with pytest.raises(LabError, match="must be a directory of this user alone"):
        control.up("two-strix")
    (folder / "ferrule").chmod(0o700)


@pytest.mark.parametrize("end", ["down", "kill"])
def test_a_user_without_rights_gets_a_lab_in_a_user_namespace(end: str) -> None:
    """As user 1000 with no capabilities, who may make user namespaces of its own where the machine lets it."""
    become = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*become, "unshare", "--user", "--map-root-user", "--net", "true"], check=False).returncode != 0:
        pytest.skip("this machine has no user namespaces for users")
    program = (
        "import os, subprocess, sys\n"
        "from ferrule.lab.netns import control\n"
        "assert os.geteuid() == 1000\n"
        "status = control.up('two-strix')\n"
        "entry = control.enter('two-strix', 'strix-1')\n"
        "print(subprocess.run([*entry.prefix, 'hostname'], capture_output=True, text=True).stdout, end='')\n"
        "shell = [*entry.prefix, 'sh', '-c', 'echo; exec sleep 1000']\n"
        "sleeper = subprocess.Popen(shell, stdout=subprocess.PIPE)\n"
        "sleeper.stdout.readline()\n"
        "if sys.argv[1] == 'kill': os.kill(status.pid, 9)\n"
        "print(control.down(), sleeper.wait(20))\n"
    )
    command = [*become, sys.executable, "-c", program, end]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "strix-1\n['two-strix'] -9\n", done.stderr
