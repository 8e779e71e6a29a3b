"""Read another machine's cables over ssh: what ``ferrule links record --plain -`` prints there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from ferrule.errors import LinkError
from ferrule.links.probe import Probe
from ferrule.links.record import parse_record

_NOT_FOUND = 127
_SSH_FAILED = 255
_MAX_CONNECT_SECONDS = 10


def probe_remote(host: str, *, command: str = "ferrule", timeout: float = 30.0) -> Probe:
    """``host`` as ssh knows it; ``command``: how Ferrule is called there, as one writes it in its shell.

    Raises `LinkError` if ssh, or Ferrule there, fails or takes longer than ``timeout`` seconds. ssh never asks for a
    password: a user who wants that logs in first and lets ssh share the connection.
    """
    late = f"answer within {timeout:g} s; try `ssh {host} {command} version`, or a longer --timeout"
    told = ask_ferrule(host, command, "links record --plain -", "links record", timeout, late=late)
    # A login script may have printed a greeting first.
    start = told.find(b'{"format"')
    return Probe(parse_record(host, told[max(start, 0) :], f"what {host} printed"))


def ask_ferrule(host: str, command: str, arguments: str, name: str, timeout: float, *, late: str) -> bytes:
    """Output of ``command arguments`` on ``host``. ``name``: of that command in errors; ``late``: what the host did not
    do within ``timeout`` seconds, and the cure. Raises `LinkError`."""
    if not host or host.startswith("-"):
        raise LinkError(f"{host!r} is no host; write it as for ssh: strix-b or me@strix-b")
    seconds = max(1, min(_MAX_CONNECT_SECONDS, int(timeout)))
    ssh = ssh_command(host, f"{command} {arguments}", seconds)
    try:
        done = subprocess.run(ssh, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise LinkError(f"{host} did not {late}") from None
    except OSError as error:
        raise LinkError(f"cannot run {ssh[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise LinkError(_why(host, command, name, done.returncode, done.stderr.decode("utf-8", errors="replace")))
    return done.stdout


def ssh_command(
    host: str, command: str, seconds: int, *, program: Sequence[str] = ("ssh",), options: Sequence[str] = ()
) -> list[str]:
    """Command that runs ``command`` in the shell of ``host``: it never asks, and gives up connecting after ``seconds``.

    ``program``: how to call ssh; ``options``: more of its own. Raises `LinkError` on a machine without it.
    """
    path = shutil.which(program[0])
    if path is None:
        raise LinkError(f"there is no {program[0]} on this machine; install it: sudo apt install openssh-client")
    own = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={seconds}"]
    return [path, *program[1:], *own, *options, "--", host, command]


def _why(host: str, command: str, name: str, code: int, told: str) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit code {code}"
    if code == _SSH_FAILED:
        return (
            f"ssh cannot log in to {host}: {last}; `ssh {host} true` must work without a password (ssh-copy-id {host})"
        )
    if code == _NOT_FOUND:
        return (
            f"there is no `{command}` on {host}; install Ferrule there, or say where it is: "
            "--remote-command '~/.venv/bin/ferrule'"
        )
    return f"`{command} {name}` failed on {host}: {last}; it must be of the same version as here"
