"""Probe of a device of this machine, in a process of its own: a driver may hang."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress

from ferrule.process import last_line, tied

PROBE_SECONDS = 30.0
"""Time limit for a probe, which imports torch."""
KILL_SECONDS = 1.0
_PROBE_MODULE = "ferrule.engine.devices.probe"


async def probe_here(device: str) -> str:
    """Why it cannot be used now; empty where it can. Raises nothing."""
    process = await asyncio.create_subprocess_exec(
        *tied([sys.executable, "-m", _PROBE_MODULE, device]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, told = await process.communicate()
    except TimeoutError:
        return f"it did not answer within {PROBE_SECONDS:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # one that a driver does not let go of is left to the system
                async with asyncio.timeout(KILL_SECONDS):
                    await process.communicate()
    return (last_line(told.decode(errors="replace")) or f"exit code {process.returncode}") if process.returncode else ""
