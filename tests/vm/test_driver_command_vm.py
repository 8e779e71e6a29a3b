"""``ferrule lab vm run NAME --driver -- PROGRAM``: the driver in guests by one command."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.vm, pytest.mark.slow]

SECONDS = 900
"""For what takes two minutes on a quiet machine, with the module to compile."""


def test_perftest_over_our_driver_by_one_command() -> None:
    words = ["lab", "vm", "run", "two-strix", "--kernel", "6.12", "--driver", "--", "ib_write_lat"]
    done = subprocess.run(
        [sys.executable, "-m", "ferrule.cli.main", *words], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = re.search(r"(?m)^ 2 +1000 +([\d.]+) ", done.stdout)
    assert row is not None, done.stdout
    assert float(row[1]) > 0
    assert "Dual-port       : OFF\t\tDevice         : ferrule-strix-2" in done.stdout
