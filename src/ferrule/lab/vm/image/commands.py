"""Run one of the host's programs with a deadline, and say what it said when it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ferrule.errors import LabError
from ferrule.process import tied

_TAIL_LINES = 15


def run(
    command: Sequence[str | Path],
    *,
    timeout: float,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """The output of ``command``. ``what`` names the purpose in the `LabError` of a failure; ``timeout`` in seconds."""
    if missing([str(command[0])]):
        raise LabError(f"{what}: there is no program {command[0]}; install it")
    try:
        done = subprocess.run(
            tied([str(word) for word in command]),  # make and apt would go on for long when we are killed
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{what}: {command[0]} did not finish within {timeout:g} s") from error
    except OSError as error:
        raise LabError(f"{what}: cannot run {command[0]}: {error.strerror}; install it") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise LabError(f"{what}: {command[0]} ended with status {done.returncode}:\n{tail}")
    return done.stdout


def missing(programs: Sequence[str]) -> list[str]:
    """Those of ``programs`` that this host does not have."""
    return [name for name in programs if shutil.which(name) is None]
