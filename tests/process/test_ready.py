"""A background process is ready when it says a line; else it is ended, and its log says why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ferrule.process import NotReady, start_until_ready

SECONDS = 20.0


def program(*lines: str) -> list[str]:
    return [sys.executable, "-c", "import os, sys, time\n" + "\n".join(lines)]


@pytest.mark.parametrize("outlive", [False, True])
def test_its_first_line_is_given(tmp_path: Path, outlive: bool) -> None:
    said = "print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), flush=True); time.sleep(60)"
    process, line = start_until_ready(program(said), tmp_path / "log", SECONDS, outlive=outlive)
    assert line == f"{outlive} True\n".encode()
    process.kill()
    process.wait(SECONDS)


def test_it_inherits_descriptors(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader:
        command = program(f"os.write({write}, b'here'); print(flush=True)")
        process, _ = start_until_ready(command, tmp_path / "log", SECONDS, outlive=True, pass_fds=[write])
        os.close(write)
        assert reader.read() == b"here"
    process.wait(SECONDS)


def test_why_it_ended_is_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with pytest.raises(NotReady, match="no such thing"):
        start_until_ready(program("sys.exit('no such thing')"), log, SECONDS, outlive=True)
    assert log.read_text().startswith("before\n")
    with pytest.raises(NotReady, match="it said nothing"):
        start_until_ready(program("time.sleep(60)"), tmp_path / "other", 0.2, outlive=True)
