"""Place of a fault in a JSON schema: the smallest part of it that has the same fault. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MOST_TRIES = 200
"""Parts that are tried; each takes about a millisecond."""
_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
"""Keywords whose value has schemas by name."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_ONES = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")


def place_of_fault(schema: Any, fault_of: Callable[[Any], str | None]) -> str:
    """JSON pointer to the smallest part of ``schema`` that has its fault, such as ``#/properties/age``; ``fault_of``
    says which fault a schema has. Empty where no part has it, but the whole."""
    fault = fault_of(schema)
    if fault is None or not isinstance(schema, dict):
        return ""
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    place, steps, tries = "", _parts(schema), 0
    while tries < MOST_TRIES and (found := next(steps, None)) is not None:
        step, part = found
        tries += 1
        if fault_of({**shared, **part}) == fault:
            place, steps = f"{place or '#'}/{step}", _parts(part)
    return place


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas right below ``schema``, with the end of their pointers."""
    for keyword in _MAPS:
        if isinstance(named := schema.get(keyword), dict):
            yield from ((f"{keyword}/{_escaped(name)}", part) for name, part in named.items() if isinstance(part, dict))
    for keyword in _LISTS:
        if isinstance(several := schema.get(keyword), list):
            yield from ((f"{keyword}/{place}", part) for place, part in enumerate(several) if isinstance(part, dict))
    for keyword in _ONES:
        if isinstance(one := schema.get(keyword), dict):
            yield keyword, one


def _escaped(name: str) -> str:
    """As RFC 6901 wants it."""
    return name.replace("~", "~0").replace("/", "~1")
