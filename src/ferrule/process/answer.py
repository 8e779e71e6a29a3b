"""Subprocesses of Python modules whose answer is waited for, with a deadline."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from ferrule.process.output import last_line
from ferrule.process.tied import tied

KILL_SECONDS = 1.0


@dataclass(frozen=True)
class Answer:
    """``out``: what it printed. ``complaint``: the last line of its errors, empty where there is none."""

    returncode: int
    out: str
    complaint: str


async def answer_of(module: str, *arguments: str, seconds: float) -> Answer:
    """What ``module`` says, run in a process that does not outlive this one. Raises `TimeoutError`, and then kills
    it."""
    process = await asyncio.create_subprocess_exec(
        *tied([sys.executable, "-m", module, *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # one that a driver does not let go of is left to the system
                async with asyncio.timeout(KILL_SECONDS):
                    await process.communicate()
    assert process.returncode is not None
    return Answer(process.returncode, out.decode(errors="replace"), last_line(errors.decode(errors="replace")))
