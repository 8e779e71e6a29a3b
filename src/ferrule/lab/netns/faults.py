"""Faults of a cable, as `ferrule lab fault` takes them. Pure but for `Fault.apply`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ferrule.errors import ConfigError
from ferrule.hardware import Changes, parse_changes
from ferrule.lab.netns.cable import Cable

HALF = 0.5
COLLAPSE = 0.6
"""Both directions together get six tenths of one: what people report of USB4 cables that collapse."""

KINDS = {
    "cut": "no carrier at any end; with --from HOST one way: nothing that it sends arrives",
    "unplug": "no carrier, at all ends or with --from HOST at that one",
    "replug": "the plugs that were pulled are in again",
    "dark": "a carrier, and nothing ever arrives",
    "stall": "a carrier, and nothing moves; what is sent waits",
    "collapse": "both directions together get less than one alone (0.6 of the rate; collapse=0.4 for another part)",
    "retrain-half": "half its rate",
    "clear": "as the lab's file says, with all plugs in",
}

_AT_AN_END: dict[str, Callable[[Cable, int | None], None]] = {
    "cut": lambda cable, sender: cable.cut() if sender is None else cable.mute(sender),
    "unplug": Cable.cut,
    "replug": Cable.restore,
    "dark": Cable.blackhole,
}
_OF_THE_WHOLE: dict[str, Callable[[Cable], None]] = {
    "stall": Cable.stall,
    "collapse": lambda cable: cable.shape(collapse=COLLAPSE),
    "retrain-half": lambda cable: cable.retrain(HALF),
    "clear": Cable.clear,
}


@dataclass(frozen=True)
class Fault:
    """One thing that happens to a cable: a kind of `KINDS`, or other numbers. ``sender``: a host's number, or all."""

    kind: str | None
    changes: Changes = field(default_factory=Changes)
    sender: int | None = None

    def apply(self, cable: Cable) -> None:
        """Do it, now. Raises `LabError` or `ConfigError` where the cable is none to which that can happen."""
        sender = self.sender
        if sender is not None and sender not in cable.hosts:
            raise ConfigError(f"{cable.interface} does not lead to that host")
        if self.kind is None:
            cable.shape(sender=sender, **self.changes)
        elif self.kind in _AT_AN_END:
            _AT_AN_END[self.kind](cable, sender)
        else:
            _OF_THE_WHOLE[self.kind](cable)


def parse_fault(arguments: Sequence[str], sender: int | None = None) -> Fault:
    """``["stall"]`` or ``["delay=300us", "loss=1%"]``. Raises `ConfigError`."""
    if not arguments:
        raise ConfigError(f"name a fault: {', '.join(KINDS)}, or numbers such as delay=300us loss=1%")
    if len(arguments) == 1 and arguments[0] in KINDS:
        if sender is not None and arguments[0] not in _AT_AN_END:
            raise ConfigError(f"{arguments[0]} happens to the whole cable, not to one end; leave --from out")
        return Fault(arguments[0], sender=sender)
    for argument in arguments:
        if "=" not in argument:
            raise ConfigError(
                f"there is no fault {argument!r}; one of {', '.join(KINDS)}, or numbers such as delay=300us"
            )
    return Fault(None, parse_changes(arguments), sender)
