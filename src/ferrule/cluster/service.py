"""The agent as a service of the user's systemd, so that it comes up with the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ferrule.cluster.client import stop_agent
from ferrule.cluster.home import ClusterHome
from ferrule.errors import ClusterError

_SECONDS = 20.0
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"),
    *("FERRULE_CONFIG", "FERRULE_STATE", "FERRULE_MODEL_PATH", "FERRULE_MODEL_CACHE", "FERRULE_ENCRYPT"),
    *("FERRULE_PIN", "FERRULE_VENDOR_KERNELS"),
)
"""Variables of a login that systemd would not know, and by which models and programs are found. No secrets: any user
may read a unit."""


def unit_name(home: ClusterHome) -> str:
    return f"ferrule-{home.name}.service"


def unit_text(home: ClusterHome, command: Sequence[str]) -> str:
    """Unit file for systemd: start the agent by ``command`` when the network is there, and again when it ends badly."""
    return f"""[Unit]
Description=Ferrule agent of the cluster {home.name}
After=network-online.target
Wants=network-online.target

[Service]
{_environment(os.environ)}ExecStart={" ".join(map(_quoted, command))}
Restart=on-failure
RestartSec=2
KillMode=mixed
TimeoutStopSec=15
LimitMEMLOCK=infinity

[Install]
WantedBy=default.target
"""


def _environment(environ: Mapping[str, str]) -> str:
    """Environment of the agent, as this process has it, in lines of a unit."""
    found = {name: environ[name] for name in _KEPT if environ.get(name, "").isprintable() and environ.get(name)}
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") for name, value in found.items()
    }
    return "".join(f'Environment="{name}={value}"\n' for name, value in escaped.items())


def unit_file(home: ClusterHome) -> Path:
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user" / unit_name(home)


def install(home: ClusterHome, command: Sequence[str]) -> Path:
    """Write the unit for the agent's ``command``, enable it, and start it in place of an agent that runs.

    Raises `ClusterError` with what systemd says, or that there is none.
    """
    _need_systemd()
    file = unit_file(home)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(unit_text(home, command))
    _systemctl("daemon-reload")
    stop_agent(home)  # not before systemd has answered: what runs must not end for nothing
    _systemctl("enable", "--now", unit_name(home))
    return file


def remove(home: ClusterHome) -> bool:
    """Stop the service and take the unit away; False where there was none."""
    file = unit_file(home)
    if not file.exists():
        return False
    _need_systemd()
    _systemctl("disable", "--now", unit_name(home))
    file.unlink()
    _systemctl("daemon-reload")
    return True


def lingers(user: str) -> bool:
    """Whether the user's services run without a login."""
    return (Path("/var/lib/systemd/linger") / user).exists()


def _need_systemd() -> None:
    if sys.platform != "linux" or shutil.which("systemctl") is None:
        raise ClusterError(
            "there is no systemd here; have your system's service manager run: ferrule up --foreground "
            "(`ferrule service print` shows how systemd is told)"
        )


def _systemctl(*words: str) -> None:
    command = ["systemctl", "--user", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode:
        raise ClusterError(
            f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}; it needs a login session "
            "of the user, also over ssh: not su or sudo"
        )


def _quoted(word: str) -> str:
    """As systemd reads a command line."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(letter in word for letter in " \t\"'\\;") else escaped
