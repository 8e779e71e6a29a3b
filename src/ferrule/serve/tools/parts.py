"""Parts of an answer, and the tools that were offered for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class Call:
    """Tool call. ``arguments``: a JSON object as text. ``id``: None where the format has none of its own.
    ``index``: how many came before it in the answer."""

    name: str
    arguments: str
    id: str | None = None
    index: int = 0


@dataclass(frozen=True)
class CallPiece(Call):
    """Piece of a call that is still being written, and certain to become one: first its name, then with no name its
    ``arguments``, which together are the object. Only forms that ask for them get these (`prepare_chat`)."""


Part = Text | Reasoning | Call


def join(parts: list[Part], part: Part) -> None:
    """Put ``part`` behind ``parts``: text goes on with text and reasoning with reasoning; what is empty is left out."""
    last = parts[-1] if parts else None
    match part, last:
        case (Text("") | Reasoning(""), _):
            pass
        case (Text(text), Text(before)):
            parts[-1] = Text(before + text)
        case (Reasoning(text), Reasoning(before)):
            parts[-1] = Reasoning(before + text)
        case _:
            parts.append(part)


@dataclass(frozen=True)
class Tools:
    """Tools that were offered: the JSON schema of each one's parameters, by name."""

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def schema(self, tool: str, parameter: str) -> Any:
        """JSON schema of one parameter, None where it is not declared."""
        properties = self.parameters.get(tool, {}).get("properties")
        return properties.get(parameter) if isinstance(properties, Mapping) else None


@dataclass(frozen=True)
class Block:
    """Calls that the first ``end`` characters of a text say. None of ``calls``: these characters belong to the calls
    before, or around them, and say nothing. None for ``calls``: they are no call but text."""

    calls: tuple[Call, ...] | None
    end: int


@dataclass(frozen=True)
class Markers:
    """Marks in what a model writes. ``opens``: where calls may begin. ``starts``: the same, but only at the start of
    the answer or after a call. ``think``: pairs around reasoning at the start of an answer."""

    opens: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    think: tuple[tuple[str, str], ...] = ()


class Format(Protocol):
    """Format of tool calls, as a family of models writes them."""

    @property
    def markers(self) -> Markers: ...

    @property
    def special(self) -> Sequence[str]:
        """Special tokens that have a meaning in it, and so must reach it."""
        ...

    def read(self, text: str, tools: Tools, *, after_call: bool, ended: bool) -> Block | None:
        """Calls at the start of ``text``, which begins with one of the markers; None while more is needed to tell.
        ``ended``: nothing follows, because the model chose to end."""
        ...
