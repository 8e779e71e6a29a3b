"""An agent's log does not grow without bound."""

import subprocess
import sys

PROGRAM = """
import logging, sys
from pathlib import Path
from ferrule.agent.log import log_to

log_to(Path(sys.argv[1]), 2000)
for number in range(100):
    logging.warning("line %03d of the agent", number)
print("a traceback", file=sys.stderr)
"""


def test_the_log_is_moved_aside_and_standard_error_follows_it(tmp_path):
    log = tmp_path / "agent.log"
    subprocess.run([sys.executable, "-c", PROGRAM, str(log)], check=True, timeout=60, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.log", "agent.log.1"]
    assert all(path.stat().st_size <= 2100 for path in tmp_path.iterdir())
    assert log.read_text().splitlines()[-1] == "a traceback"
    assert "line 099" in log.read_text()
