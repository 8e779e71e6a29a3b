"""Writes the records in ``trees/``: ``PYTHONPATH=src python tests/links/build_trees.py``.

No machine was recorded. Each record is put together from public documents that say what the kernel, or macOS, writes
where; they are named in its header. A test checks that the files are what this program writes.
"""

from __future__ import annotations

import json
from pathlib import Path

import gpu_trees
import linux_trees
import mac_trees

TREES = Path(__file__).parent / "trees"


def records() -> dict[str, str]:
    """The name of each record and the text of its file."""
    builds = {**linux_trees.trees(), **mac_trees.trees(), **gpu_trees.trees()}
    return {name: json.dumps(one.record(), indent=1, ensure_ascii=False) + "\n" for name, one in builds.items()}


if __name__ == "__main__":
    for name, text in records().items():
        (TREES / f"{name}.json").write_text(text)
