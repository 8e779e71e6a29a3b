"""Error that a script gets when a rank dies."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ferrule.launch import LocalLauncher

RANK = Path(__file__).with_name("fault_rank.py")


@pytest.mark.slow
def test_a_lost_rank_is_the_same_error_in_every_kind_of_call() -> None:
    reader, writer = os.pipe()
    launcher = LocalLauncher(
        [sys.executable, str(RANK)],
        2,
        env={"OMP_NUM_THREADS": "1"},
        rank_env=[{"REPORT_FD": str(writer)}, {}],
        pass_fds=[[writer], []],
    )
    with os.fdopen(reader) as reports:
        try:
            launcher.start()
        finally:
            os.close(writer)
        with launcher:
            found = dict(json.loads(line) for line in reports)
    assert found == dict.fromkeys(["waiting", "started", "future", "message", "functional"], "PeerLost rank 1")
