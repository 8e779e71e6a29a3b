"""The programs in driver/tests, compiled for guests."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCES = Path(__file__).parents[2] / "driver" / "tests"


def compiled(directory: Path, *names: str) -> dict[str, Path]:
    """Each into ``directory``; by their paths in a guest."""
    for name in names:
        command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", directory / name, _SOURCES / f"{name}.c"]
        subprocess.run([*command, "-libverbs"], check=True, timeout=120)
    return {f"/lab/{name}": directory / name for name in names}
