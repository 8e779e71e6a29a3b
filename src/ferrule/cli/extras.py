"""Optional dependencies of commands: packages beyond the base install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.installation import EXTRAS, lacking

OPTIONAL = frozenset(package for packages in EXTRAS.values() for package in packages) | {"huggingface_hub", "starlette"}
"""Packages that only extras install: their own, and what these bring along."""


@contextmanager
def needs(extra: str, command: str) -> Iterator[None]:
    """Around imports: turns a missing package of ``extra`` into a `ConfigError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL:
            raise
        raise lacking(extra, f"ferrule {command}", str(error.name)) from error
