"""Defaults < file < environment: which value counts, and where it comes from. Flags are above all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ferrule.config.catalogue import SETTINGS, Setting
from ferrule.config.file import read_config

Source = Literal["default", "file", "environment"]

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
"""In names of variables."""


@dataclass(frozen=True)
class Value:
    """``text``: the value as the variable has it; of a default, as a person reads it."""

    setting: Setting
    text: str
    source: Source

    @property
    def shown(self) -> str:
        return "(hidden)" if self.setting.secret and self.source != "default" else self.text


def merge(file: Mapping[str, str], environ: Mapping[str, str]) -> tuple[Value, ...]:
    """The value of every setting. Pure. An empty variable counts as none, as everywhere."""
    return tuple(
        Value(each, environ[each.variable], "environment")
        if environ.get(each.variable)
        else Value(each, file[each.variable], "file")
        if file.get(each.variable)
        else Value(each, each.default, "default")
        for each in SETTINGS
    )


def current_values(environ: Mapping[str, str] = os.environ) -> tuple[Value, ...]:
    """`merge` of this user's settings file and ``environ``. Raises `ConfigError` for a wrong file."""
    return merge(read_config(environ), environ)


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` with what the settings file says where it says nothing. Raises `ConfigError` for a wrong file."""
    file = read_config(environ)
    return {**file, **{name: value for name, value in environ.items() if value or name not in file}}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without variables whose names speak of secrets: for programs of others, and for what reads what
    strangers send."""
    return {name: value for name, value in environ.items() if not _SECRET.search(name)}
