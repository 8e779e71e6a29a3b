"""Models for `ferrule serve` in a TOML file: a table ``[models.NAME]`` for each."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ferrule.errors import ConfigError

_TYPES = {str: "text in quotes", int: "a whole number", float: "a number of seconds", bool: "true or false"}


@dataclass(frozen=True)
class Wanted:
    """A model that is to be served, as `ferrule serve`'s options and the file's keys say it. ``name``: None for its
    own. ``ttl``: seconds without requests after which it is unloaded; ``pin``: never unloaded; ``preload``: loaded at
    the start. ``aliases``: further names, in which ``*`` stands for any text."""

    model: str
    name: str | None = None
    tensor: int | None = None
    pipeline: int | None = None
    device: str | None = None
    weights: str | None = None
    dtype: str = "auto"
    max_context: int | None = None
    threads: int | None = None
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    pin: bool = False
    ttl: float | None = None
    preload: bool = False
    tool_parser: str = "auto"
    kv_cache: str = "auto"

    @property
    def split(self) -> bool:
        """Whether the user said how."""
        return self.tensor is not None or self.pipeline is not None


_FIELDS = {"tp": "tensor", "pp": "pipeline"}
"""Of `Wanted`, where a key of the file, which is the option's name, is another word."""
_KEYS: dict[str, type] = {
    "model": str,
    "tp": int,
    "pp": int,
    "device": str,
    "weights": str,
    "dtype": str,
    "max_context": int,
    "threads": int,
    "aliases": list,
    "adapters": list,
    "pin": bool,
    "ttl": float,
    "preload": bool,
    "tool_parser": str,
    "kv_cache": str,
}


def read_models(file: Path, options: Wanted) -> list[Wanted]:
    """The models of ``file``, in its order; ``options`` are for what it leaves out. Raises `ConfigError`."""
    try:
        document = tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--models {file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--models {file}: {error}") from None
    tables = document.get("models")
    if set(document) != {"models"} or not isinstance(tables, dict) or not tables:
        raise ConfigError(f"--models {file}: it must have tables [models.NAME], one for each model, and nothing else")
    return [_wanted(f"{file}, [models.{name}]", name, table, options) for name, table in tables.items()]


def _wanted(place: str, name: str, table: Any, options: Wanted) -> Wanted:
    if not isinstance(table, dict) or "model" not in table:
        raise ConfigError(f"{place}: model is missing: a directory, a GGUF file, a hub id, or demo")
    given: dict[str, Any] = {_FIELDS.get(str(key), str(key)): _value(place, key, value) for key, value in table.items()}
    if "model" in given:
        path = Path(given["model"]).expanduser()
        given["model"] = str(path) if path.exists() else given["model"]
    if given.get("pin") and "ttl" in given:
        raise ConfigError(f"{place}: a model with pin stays in memory, so a ttl means nothing: leave one of them out")
    return replace(options, name=name, **given)


def _value(place: str, key: str, value: Any) -> Any:
    kind = _KEYS.get(key)
    if kind is None:
        near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{place}: there is no key {key!r}; did you mean {near!r}?")
    if kind is list:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ConfigError(f"{place}: {key} must be a list of texts, not {value!r}")
        return tuple(value)
    accepted: Any = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{place}: {key} must be {_TYPES[kind]}, not {value!r}")
    least = {int: 1, float: 0}.get(kind)
    if least is not None and value < least:
        raise ConfigError(f"{place}: {key} must be at least {least}, not {value}")
    return value
