"""The guests that there are, by name."""

from __future__ import annotations

from typing import Final

from ferrule.engine.abilities import BUILT_IN, Abilities
from ferrule.engine.guests.guest import Guest
from ferrule.engine.guests.llama_cpp.guest import LlamaCpp
from ferrule.engine.guests.vllm.guest import VllmGuest
from ferrule.errors import ConfigError

GUESTS: Final[dict[str, Guest]] = {each.name: each for each in (LlamaCpp(), VllmGuest())}
ENGINES: Final[dict[str, Abilities]] = {
    BUILT_IN.engine: BUILT_IN,
    **{name: guest.abilities for name, guest in GUESTS.items()},
}
"""What each engine does, the built-in one first."""


def guest_named(name: str) -> Guest:
    """Raises `ConfigError`."""
    guest = GUESTS.get(name)
    if guest is None:
        raise ConfigError(f"--engine {name!r} is not one of auto, {', '.join(ENGINES)}")
    return guest
