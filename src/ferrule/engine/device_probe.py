"""Probe of a device of this machine, in a process of its own: a driver may hang."""

from __future__ import annotations

from ferrule.process.answer import answer_of

PROBE_SECONDS = 30.0
"""Time limit for a probe, which imports torch."""
_PROBE_MODULE = "ferrule.engine.devices.probe"


async def probe_here(device: str) -> str:
    """Why it cannot be used now; empty where it can. Raises nothing."""
    try:
        answer = await answer_of(_PROBE_MODULE, device, seconds=PROBE_SECONDS)
    except TimeoutError:
        return f"it did not answer within {PROBE_SECONDS:g} s"
    return (answer.complaint or f"exit code {answer.returncode}") if answer.returncode else ""
