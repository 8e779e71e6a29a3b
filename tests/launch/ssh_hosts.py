"""Lab hosts that can be logged in to: each has an sshd of its own, with keys and settings of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ferrule
from ferrule.lab import Lab

SSHD = "/usr/sbin/sshd"
PORT = 2222
SECONDS = 180.0


def obstacle() -> str | None:
    """Why no sshd can run in lab hosts here, or None."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        return "there is no sshd on this machine: sudo apt install openssh-server"
    if os.geteuid() != 0 or len(Path("/proc/self/uid_map").read_text().split()) != 3:
        return "sshd needs root"
    if int(Path("/proc/self/uid_map").read_text().split()[2]) < 1 << 16:
        return "sshd needs more users than this user namespace has"
    return None


@dataclass(frozen=True)
class SshHosts:
    """A lab in which ``ssh -F config host1`` works from every host. ``python``: one with this very Ferrule."""

    lab: Lab
    config: Path
    python: Path

    @property
    def ssh(self) -> str:
        return f"ssh -F {self.config}"

    def launch(self, *words: str, host: int = 0, folder: Path | None = None) -> subprocess.Popen[str]:
        """``ferrule launch`` on a host of the lab."""
        argv = [sys.executable, "-m", "ferrule.cli.main", "launch", "--ssh", self.ssh, "--python", str(self.python)]
        command = self.lab.command(host, [*argv, *words])
        return subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(self.lab.name(host)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, folder: Path | None = None) -> tuple[int, str, str]:
        """Its exit code, standard output and standard error."""
        with self.launch(*words, folder=folder) as process:
            out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err

    def others(self, host: int) -> list[str]:
        """The processes in a host that are not its sshd's own, as their command lines."""
        found = []
        for pid in self.lab.processes(host):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
            if line and not line.startswith((SSHD, "sshd:")):
                found.append(line)
        return found

    def wait_until_empty(self, hosts: Sequence[int]) -> None:
        """Until no process of a job is left there. Fails after some seconds."""
        deadline = time.monotonic() + 20.0
        while left := [line for host in hosts for line in self.others(host)]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)


@contextmanager
def ssh_hosts(lab: Lab, folder: Path) -> Iterator[SshHosts]:
    """Start the sshds of all hosts of ``lab``; its close ends them."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
    (folder / "known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")
    server = {
        "Port": PORT,
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "UseDNS": "no",
    }
    client = {
        "Port": PORT,
        "User": "root",
        "IdentityFile": folder / "user_key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "known_hosts",
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
    }
    (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in server.items()))
    aliases = "".join(f"Host {lab.name(host)}\n  HostName {_address(lab, host)}\n" for host in range(lab.size))
    common = "".join(f"  {name} {value}\n" for name, value in client.items())
    (folder / "ssh_config").write_text(f"{aliases}Host *\n{common}")
    python = folder / "python"
    source = Path(ferrule.__file__).parents[1]
    python.write_text(f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, compiled so, locks up what talks to strangers
    for host in range(lab.size):
        log = (folder / f"sshd-{host}.log").open("wb")
        lab.popen(host, [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
        log.close()
    hosts = SshHosts(lab, folder / "ssh_config", python)
    for host in range(lab.size):
        _wait_for(hosts, host, folder / f"sshd-{host}.log")
    yield hosts


def _wait_for(hosts: SshHosts, host: int, log: Path) -> None:
    deadline = time.monotonic() + 20.0
    while "Server listening" not in log.read_text():
        assert time.monotonic() < deadline, f"sshd does not listen on {hosts.lab.name(host)}: {log.read_text()}"
        time.sleep(0.02)


def _address(lab: Lab, host: int) -> str:
    return next(cable.address(host) for cable in lab.cables if host in cable.hosts)


def _environment(name: str) -> dict[str, str]:
    source = str(Path(ferrule.__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FERRULE_")}
    return {**kept, "PYTHONPATH": path, "FERRULE_HOST_ID": name, "OMP_NUM_THREADS": "1"}
