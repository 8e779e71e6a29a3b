"""Faults of a cable between virtual machines, by the words of a command."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.errors import ConfigError
from ferrule.lab.usb4 import FAULTS, parse_fault
from ferrule.lab.usb4.messages import CableState
from ferrule.lab.vm.joined import JoinedGuests

WORDS = {
    "unplug": "pulled out at both ends",
    "replug": "plugged in again",
    "clear": "nothing is wrong with it any more; an unplugged one stays so",
    **{f"{kind}=1%" if "part of" in what else str(kind): what for kind, what in FAULTS.items()},
}
"""The words, and what they do."""


def apply_fault(lab: JoinedGuests, cable: str, words: Sequence[str], sender: str | None = None) -> CableState:
    """Apply faults to ``cable``; ``sender``: only to what this host sends, or only to its controller.

    Returns its state then. Raises `ConfigError` for a cable or words that are not known.
    """
    lab.usb4.plan.cable(cable)  # there is one of that name
    whole = {"unplug": lab.usb4.unplug, "replug": lab.usb4.plug, "clear": lab.usb4.heal}
    faults = {word: parse_fault(word, sender) for word in words if word not in whole}
    for word in words:
        if word in whole and sender is not None:
            raise ConfigError(f"{word} is for the whole cable; leave out --from {sender}")
    for word in words:
        if word in whole:
            whole[word](cable)
        else:
            lab.usb4.fault(cable, faults[word])
    return lab.usb4.state().cables[cable]
