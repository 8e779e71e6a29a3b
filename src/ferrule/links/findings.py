"""Types of the doctor's findings about a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ferrule.links.types.inventory import Evidence

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")
"""From the best to the worst."""


@dataclass(frozen=True, slots=True)
class Cure:
    """Cure of a finding. ``system``: an os-release id such as ``debian`` or ``fedora``, ``macos``, or ``any``.

    ``commands``: for a shell, in order; empty where a person has to act. ``text``: what they do, or what to do by hand.
    """

    system: str
    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, and what came of it.

    ``id``: of the check, such as ``cable-half-speed``. ``subject``: the device or host that it is about. ``why``: what
    it costs, in tokens/s where that can be said. ``hosts``: the names of those that it is about.
    """

    id: str
    severity: Severity
    subject: str
    what: str
    evidence: tuple[Evidence, ...] = ()
    why: str = ""
    cure: tuple[Cure, ...] = ()
    hosts: tuple[str, ...] = ()


def worst(findings: tuple[Finding, ...]) -> Severity:
    """The worst severity among them; ``ok`` if there is none."""
    return max((one.severity for one in findings), key=SEVERITIES.index, default="ok")
