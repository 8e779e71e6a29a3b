"""The frames of the USB4 driver: the code that the kernel module is built from, in user space under sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[2] / "driver"
FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_frames_survive_the_way_and_nothing_else_does(tmp_path: Path) -> None:
    program = tmp_path / "wire_check"
    sources = [DRIVER / "tests" / "wire_check.c", DRIVER / "kernel" / "channel" / "wire.c"]
    subprocess.run(["gcc", *FLAGS, "-o", program, *sources], check=True, timeout=60)
    for seed in (1, 2):
        subprocess.run([program, str(seed)], check=True, timeout=60)
