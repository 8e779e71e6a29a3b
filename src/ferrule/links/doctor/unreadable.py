"""Findings for what could not be read: a check that could not be done is no clean bill of health."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrule.links.doctor.cures import by_hand, run
from ferrule.links.findings import Cure, Finding
from ferrule.links.reader import shortened
from ferrule.links.types.inventory import Inventory, Unreadable

_FORBIDDEN = re.compile(r"not permitted|permission denied|must be root|superuser", re.IGNORECASE)


def check(inventory: Inventory) -> Iterator[Finding]:
    for one in inventory.unreadable:
        what = f"{shortened(one.path, 100)} could not be read: {shortened(one.why, 100)}."
        why = "What it would have told was not checked."
        yield Finding(
            "unreadable", "note", shortened(one.path, 100), what, ((one.path, one.why),), why, _cure(inventory, one)
        )


def _cure(inventory: Inventory, one: Unreadable) -> tuple[Cure, ...]:
    if _FORBIDDEN.search(one.why):
        live = inventory.machine.tree == "live"
        command = "sudo ferrule doctor" if live else "sudo ferrule links record FILE"
        return run("Run it as root; it only reads.", command)
    if "there is no `" in one.why:
        return by_hand("Install the program, or ignore this if you do not need it.")
    return by_hand(
        "Run it again. If it stays, send a record (`ferrule links record`) to the project: this is something that "
        "Ferrule does not understand yet."
    )
