"""Output of commands: tables, JSON, errors, and the names of written files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 160


def print_json(value: object) -> None:
    """``value`` may hold dataclasses and structs."""
    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2))


def print_error(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text("error: ", style="bold red") + Text(message), soft_wrap=True)


def wide_console() -> Console:
    """For tables that are as wide as they need to be where the output is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _WIDE))


def new_table(*columns: str, **looks: Any) -> Table:
    """Without lines, unless ``looks`` (of rich's `Table`) have a ``box``. Before the name of a column, ``>`` aligns it
    to the right, and ``!`` keeps its cells in one line; others are folded where the terminal is narrow."""
    from rich.table import Table

    made = Table(**({} if "box" in looks else {"box": None, "padding": (0, 2, 0, 0)}) | looks)
    for column in columns:
        name = column.lstrip(">!")
        marks = column.removesuffix(name)
        whole = "!" in marks
        made.add_column(
            name, justify="right" if ">" in marks else "left", no_wrap=whole, overflow="ellipsis" if whole else "fold"
        )
    return made


def write_file(path: Path | None, text: str, *, err: bool = False) -> None:
    """Write a file where there is a ``path``; says so, to standard error where ``err``."""
    if path is not None:
        path.write_text(text)
        typer.echo(f"wrote {path}", err=err)


def check_folders(paths: Iterable[Path | None]) -> None:
    """Before something takes minutes: raises `ConfigError` where its results could not be written to ``paths``."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"cannot write {path}: {path.resolve().parent} is no folder")
