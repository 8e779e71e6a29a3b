"""Device description of this host for the planner, measured in a subprocess: ``python -m ferrule.agent.device``."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from ferrule.errors import ClusterError, FerruleError
from ferrule.process import last_line, tied

DEVICE_SECONDS = 150.0
RANK = "ferrule.engine.rank.stepping"
"""Module that times a rank of the built-in engine, for `ferrule.plan.device.measure`."""


async def described() -> str:
    """Device description as ``ferrule plan --device-json`` prints it here. Raises `ClusterError`."""
    process = await asyncio.create_subprocess_exec(
        *tied([sys.executable, "-m", "ferrule.agent.device"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEVICE_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        raise ClusterError(f"it did not describe its device within {DEVICE_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        last = last_line(err.decode(errors="replace"))
        raise ClusterError(f"it cannot describe its device: {last or 'it says nothing'}")
    return out.decode(errors="replace")


def main() -> int:
    from ferrule.plan.cluster import report_text  # seconds of imports, and memory that the agent must not have

    try:
        sys.stdout.write(f"{report_text(rank=RANK)}\n")
    except FerruleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
