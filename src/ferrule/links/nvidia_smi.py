"""Queries of NVIDIA's GPUs by its driver's tool, ``nvidia-smi``."""

from __future__ import annotations

import subprocess


def query(fields: str) -> str:
    """The command that tells ``fields``, which stand between commas, of each GPU in a line of its own."""
    return f"nvidia-smi --query-gpu={fields} --format=csv,noheader,nounits"


def rows_of(text: str) -> list[list[str]]:
    """The cells of each GPU of what a `query` printed."""
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def ask(fields: str, seconds: float, gpu: str = "") -> list[list[str]]:
    """``fields`` of every GPU, or of the one with the number ``gpu``, as of now: their cells. No rows where the tool
    is not there, fails, or takes longer than ``seconds``, as where the driver hangs."""
    tool, *asked = query(fields).split()
    command = [tool, *([f"--id={gpu}"] if gpu else []), *asked]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    return rows_of(done.stdout)
