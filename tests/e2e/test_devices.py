"""A device that is asked for and not there (answers of devices: test_served_faults.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.mark.skipif(torch.xpu.is_available(), reason="this machine has an Intel GPU")
def test_a_device_that_is_not_here_is_told_with_what_it_takes() -> None:
    command = [sys.executable, "-m", "ferrule.cli.main", "generate", "demo", "Hello", "--device", "xpu"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ended.returncode != 0
    assert "device xpu: torch" in ended.stderr
    assert "Intel GPU" in ended.stderr
