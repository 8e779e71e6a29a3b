"""Optional dependencies of commands: packages beyond the base install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ferrule.errors import ConfigError
from ferrule.installation import pip_install

OPTIONAL = frozenset(
    {"torch", "transformers", "safetensors", "tokenizers", "jinja2", "huggingface_hub", "fastapi", "uvicorn"}
    | {"pydantic", "starlette", "accelerate", "matplotlib"}
)
"""Packages that only extras install."""


@contextmanager
def needs(extra: str, command: str) -> Iterator[None]:
    """Around imports: turns a missing package of ``extra`` into a `ConfigError` that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL:
            raise
        raise ConfigError(
            f"ferrule {command} needs the {extra} extra ({error.name} is not installed): {pip_install(extra)}"
        ) from error
