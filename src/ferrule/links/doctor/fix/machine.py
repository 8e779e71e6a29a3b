"""The machine that fixes act on: it runs programs and writes files, with a deadline and never over what is there."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ferrule.errors import LinkError
from ferrule.files import FileRecord, decode_record, encode_record
from ferrule.process import signal_group, start

SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
_SECONDS = 30.0
_R = TypeVar("_R", bound=FileRecord)

Runner = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a program; gives its exit code and what it printed, errors included. Raises `LinkError` if it cannot."""


def run_here(
    argv: Sequence[str], seconds: float = _SECONDS, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """A `Runner` on this machine. After ``seconds`` the program is killed with all that it started."""
    variables = {**os.environ, "LC_ALL": "C", **(environment or {})}
    program = shutil.which(argv[0], path=variables.get("PATH")) or shutil.which(argv[0], path=SYSTEM_PATH)
    if program is None:
        raise LinkError(f"there is no `{argv[0]}` on this machine; install it")
    try:
        # Not tied to this process: what is half done is worse than what goes on without us.
        process = start(
            [program, *argv[1:]], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, tie=False
        )
    except OSError as error:
        raise LinkError(f"cannot run {program}: {error.strerror}") from error
    try:
        told, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise LinkError(f"`{' '.join(argv)}` did not end within {seconds:g} s") from None
    finally:
        if process.poll() is None:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, told.decode("utf-8", errors="replace").strip()


@dataclass(frozen=True)
class Target:
    """``root``: what takes the place of ``/`` for files; ``run``: what runs programs."""

    root: Path = Path("/")
    run: Runner = run_here

    @property
    def state(self) -> Path:
        """Directory of the journal."""
        return self.at("/var/lib/ferrule/doctor")

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LinkError(f"cannot read {path}: {error.strerror}") from error

    def create(self, path: str, text: str, mode: int) -> None:
        """All of it or nothing. Raises `LinkError` if something is there already."""
        place = self.at(path)
        fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_synced(fresh, text, mode)
            try:
                os.link(fresh, place)  # fails if there is one, unlike a rename
            finally:
                fresh.unlink(missing_ok=True)
        except FileExistsError:
            raise LinkError(
                f"{path} is there already, and not of our making; look into it, then move it away"
            ) from None
        except OSError as error:
            raise LinkError(f"cannot write {path}: {error.strerror}") from error

    def remove(self, path: str) -> None:
        place = self.at(path)
        try:
            place.unlink(missing_ok=True)
            if place.parent.name.endswith(".network.d") and not any(place.parent.iterdir()):
                place.parent.rmdir()
        except OSError as error:
            raise LinkError(f"cannot remove {path}: {error.strerror}") from error

    def device(self, name: str) -> str | None:
        """Output of ``ip link`` on a network interface; None if there is none of that name."""
        code, told = self.run(("ip", "link", "show", "dev", name))
        return told if code == 0 else None


def write_synced(path: Path, text: str, mode: int) -> None:
    """Write a new file so that it is on the disk when this returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


class _Header(msgspec.Struct):
    """Parts of a state file that are the same in any version."""

    schema: int


def write_state(path: Path, state: FileRecord, mode: int) -> None:
    """Replace a state file in one go; it is on the disk when this returns. Raises `OSError`."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(fresh, encode_record(state), mode)
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def read_state(data: bytes | str, kind: type[_R], schema: int) -> _R | None:
    """Contents of a state file; None if its ``schema`` is another one. Raises `ValueError` or `RecursionError`."""
    if msgspec.json.decode(data, type=_Header).schema != schema:
        return None
    return decode_record(data, kind)


def sync_folder(folder: Path) -> None:
    """Sync a directory to disk: what was made, renamed and removed in it is on the disk when this returns. Raises
    `OSError`."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
