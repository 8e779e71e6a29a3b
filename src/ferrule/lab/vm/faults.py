"""Faults of a cable between virtual machines, as `ferrule lab vm fault` takes them."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.errors import ConfigError
from ferrule.lab.usb4 import FAULTS, parse_fault
from ferrule.lab.usb4.messages import CableState
from ferrule.lab.vm.joined import JoinedGuests

FAULT_ARGUMENTS = {
    "unplug": "pulled out at both ends",
    "replug": "plugged in again",
    "clear": "nothing is wrong with it any more; an unplugged one stays so",
    **{f"{kind}=1%" if "part of" in what else str(kind): what for kind, what in FAULTS.items()},
}
"""The arguments, and what they do."""


def apply_fault(lab: JoinedGuests, cable: str, arguments: Sequence[str], sender: str | None = None) -> CableState:
    """Apply faults to ``cable``; ``sender``: only to what this host sends, or only to its controller.

    Returns its state then. Raises `ConfigError` for a cable or arguments that are not known.
    """
    lab.usb4.plan.cable(cable)  # there is one of that name
    whole = {"unplug": lab.usb4.unplug, "replug": lab.usb4.plug, "clear": lab.usb4.heal}
    faults = {argument: parse_fault(argument, sender) for argument in arguments if argument not in whole}
    for argument in arguments:
        if argument in whole and sender is not None:
            raise ConfigError(f"{argument} is for the whole cable; leave out --from {sender}")
    for argument in arguments:
        if argument in whole:
            whole[argument](cable)
        else:
            lab.usb4.fault(cable, faults[argument])
    return lab.usb4.state().cables[cable]
