"""The settings file: where it is, and what of it is understood. A mistake in it names file, line and key."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ferrule.config.catalogue import BY_KEY, Setting
from ferrule.errors import ConfigError

VARIABLE = "FERRULE_CONFIG"
"""Names another file than the user's own."""


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Path of the settings file, also where there is none yet: ``~/.config/ferrule/config.toml`` on Linux."""
    told = environ.get(VARIABLE)
    if told:
        return Path(told).expanduser()
    from platformdirs import user_config_path

    return user_config_path("ferrule", appauthor=False) / "config.toml"


def read_config(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that the file stands for; empty where there is none. Raises `ConfigError`."""
    path = config_path(environ)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if environ.get(VARIABLE):
            raise ConfigError(f"{VARIABLE}: there is no file {path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> dict[str, str]:
    """The variables that ``text``, in TOML, stands for. ``name`` is for errors. Raises `ConfigError`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
    found = {}
    for key, value in _flat(document):
        setting = BY_KEY.get(key)
        if setting is None:
            near = difflib.get_close_matches(key, BY_KEY, n=1, cutoff=0.0)[0]
            raise ConfigError(f"{_place(text, name, key)}: there is no setting {key!r}; did you mean {near!r}?")
        found[setting.variable] = _variable(setting, value, _place(text, name, key))
    return found


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, content in document.items():
        if not isinstance(content, dict):
            yield section, content
            continue
        for name, value in content.items():
            yield f"{section}.{name}", value


def _variable(setting: Setting, value: Any, place: str) -> str:
    # bool is an int to Python, not to people.
    if not isinstance(value, setting.types) or (isinstance(value, bool) and bool not in setting.types):
        wanted = " or ".join(_TYPES[kind] for kind in setting.types)
        raise ConfigError(f"{place}: {setting.key} must be {wanted}, not {value!r}")
    if isinstance(value, bool):
        return "1" if value else "0"
    if not isinstance(value, list):
        return str(value)
    for item in value:
        if not isinstance(item, str) or setting.separator in item:
            raise ConfigError(f"{place}: {setting.key}: {item!r} is no text without {setting.separator!r}")
    return setting.separator.join(value)


_TYPES = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
    list: "a list of texts",
}


def _place(text: str, name: str, key: str) -> str:
    """File and line of ``key``, as far as it is found without a parser that keeps lines."""
    section, _, last = key.rpartition(".")
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
            here = heading[1]
        elif re.match(rf"\s*[\"']?{re.escape(last if here == section else key)}[\"']?\s*=", line):
            return f"{name}, line {number}"
    return name
