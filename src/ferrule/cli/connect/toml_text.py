"""Edits of TOML by lines, which leave all else as it is. Pure; whoever calls it checks what came out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrule.cli.connect.edits import Edit
from ferrule.errors import ConfigError

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")


def read(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # its text has line and column
        raise ConfigError(str(error)) from None


def edited(text: str, edits: Sequence[Edit]) -> str:
    """``text`` with ``edits`` made: a mapping as a table of its own, anything else among the keys above all tables."""
    read(text)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    for edit in edits:
        if isinstance(edit.value, Mapping):
            _table(lines, ".".join(edit.path), edit.value)
        else:
            _key(lines, ".".join(edit.path), edit.value)
    return "".join(lines)


def _key(lines: list[str], key: str, value: Any) -> None:
    top = next((at for at, line in enumerate(lines) if _HEADER.match(line)), len(lines))
    setting = re.compile(rf'(\s*)"?{re.escape(key)}"?\s*=')
    for at in range(top):
        if setting.match(lines[at]):
            lines[at] = f"{key} = {_dump(value)}\n"
            return
    while top > 0 and (not lines[top - 1].strip() or lines[top - 1].lstrip().startswith("#")):
        top -= 1  # what stands right above a table is about that table
    lines.insert(top, f"{key} = {_dump(value)}\n")
    if len(lines) > top + 1 and _HEADER.match(lines[top + 1]):
        lines.insert(top + 1, "\n")


def _table(lines: list[str], name: str, value: Mapping[str, Any]) -> None:
    made = [f"[{name}]\n", *(f"{key} = {_dump(each)}\n" for key, each in value.items())]
    headers = [(at, found[1].replace('"', "")) for at, line in enumerate(lines) if (found := _HEADER.match(line))]
    start = next((at for at, header in headers if header == name), None)
    if start is None:
        if lines and lines[-1].strip():
            made.insert(0, "\n")
        lines.extend(made)
        return
    end = next((at for at, _ in headers if at > start), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    lines[start:end] = made


def _dump(value: Any) -> str:
    """A string, number or truth value: TOML writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False)
