"""Edits of YAML by lines, which leave all else as it is. Pure; whoever calls it checks what came out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from ferrule.cli.connect.edits import Edit, position
from ferrule.errors import ConfigError

_ITEM: Final = re.compile(r"( *)-(?: |$)")


def read(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ConfigError(f"{place}{error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    return {} if value is None else value


def edited(text: str, edits: Sequence[Edit]) -> str:
    """``text`` with ``edits`` made, of keys at its top: values, or items of a list."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    for edit in edits:
        (key,) = edit.path
        found = re.compile(rf"(?P<key>{re.escape(key)}|'{re.escape(key)}'|\"{re.escape(key)}\")\s*:(?P<rest>.*)")
        at = next((at for at, line in enumerate(lines) if found.match(line)), None)
        if edit.named is not None:
            present = read("".join(lines)).get(key) or []
            _item(lines, key, at, position(present, edit.named), edit.value)
        elif at is None:
            lines.append(f"{key}: {_dump(edit.value)}\n")
        else:
            lines[at] = f"{key}: {_dump(edit.value)}\n"
    return "".join(lines)


def _item(lines: list[str], key: str, at: int | None, place: int, value: Mapping[str, Any]) -> None:
    """Put ``value`` at ``place`` of the list ``key``, which begins in line ``at``."""
    if at is None:
        at = len(lines)
        lines.append(f"{key}:\n")
    elif re.match(r"[^#]*:\s*(\[\s*\]|null|~)\s*$", lines[at]):
        lines[at] = f"{key}:\n"
    end = next((row for row in range(at + 1, len(lines)) if re.match(r"[^\s#-]", lines[row])), len(lines))
    while end > at + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    found = next((item for line in lines[at + 1 : end] if (item := _ITEM.match(line))), None)
    indent = "  " if found is None else found[1]
    starts = [row for row in range(at + 1, end) if (item := _ITEM.match(lines[row])) and item[1] == indent]
    first, last = ([*starts, end, end][place : place + 2]) if place < len(starts) else (end, end)
    while last > first and (not lines[last - 1].strip() or lines[last - 1].lstrip().startswith("#")):
        last -= 1
    rows = [f"{name}: {_dump(each)}\n" for name, each in value.items()]
    lines[first:last] = [f"{indent}{'- ' if row == 0 else '  '}{text}" for row, text in enumerate(rows)]


def _dump(value: Any) -> str:
    """As JSON, which YAML has within it."""
    return json.dumps(value, ensure_ascii=False)
