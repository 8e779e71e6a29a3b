"""Edits of settings files: which keys get which values, whatever the file's format. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ferrule.errors import ConfigError


@dataclass(frozen=True)
class Edit:
    """``value`` is to be found at ``path``; what else was there is replaced. ``named``: what is at ``path`` is a list,
    of which ``value`` is the item that has this ``name``."""

    path: tuple[str, ...]
    value: Any
    named: str | None = None


def merged(settings: Any, edits: Sequence[Edit]) -> Any:
    """``settings`` after ``edits``. Raises `ConfigError` where something else than an object or list is in the way."""
    made = deepcopy(settings)
    for edit in edits:
        place = made
        for step in edit.path[:-1]:
            place = place.setdefault(step, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ConfigError(f"{'.'.join(edit.path[:-1])} is no object, as it would have to be")
        last = edit.path[-1]
        if edit.named is None:
            place[last] = edit.value
            continue
        items = place.setdefault(last, [])
        if items is None:
            items = place[last] = []
        if not isinstance(items, list):
            raise ConfigError(f"{'.'.join(edit.path)} is no list, as it would have to be")
        at = position(items, edit.named)
        items[at : at + 1] = [edit.value]
    return made


def position(items: Sequence[Any], name: str) -> int:
    """Place of the item called ``name``; the end where there is none."""
    found = (at for at, item in enumerate(items) if isinstance(item, Mapping) and item.get("name") == name)
    return next(found, len(items))
