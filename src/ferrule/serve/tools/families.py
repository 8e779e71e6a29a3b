"""Families of models by the format of their tool calls, and which a model's chat template speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from ferrule.errors import ConfigError
from ferrule.serve.tools import delimited, harmony, llama, mistral
from ferrule.serve.tools.declared import Declared, declared
from ferrule.serve.tools.parts import Format, Tools
from ferrule.serve.tools.pieces import HEADS, Pieces
from ferrule.serve.tools.reader import Plain, Reader, Reads

THINK: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""Marks around reasoning, for models whose format of calls has none of its own."""

FORMATS: Final[Mapping[str, Format]] = {
    "hermes": delimited.HERMES,
    "qwen-xml": delimited.QWEN_XML,
    "glm": delimited.GLM,
    "minimax": delimited.MINIMAX,
    "deepseek": delimited.DEEPSEEK,
    "dsml": delimited.DSML,
    "dsml-spaced": delimited.DSML_SPACED,
    "kimi": delimited.KIMI,
    "mistral": mistral.MISTRAL,
    "llama-json": llama.LLAMA_JSON,
    "pythonic": llama.PYTHONIC,
}
HARMONY: Final = "harmony"
NAMES: Final = (*FORMATS, HARMONY)
AUTO: Final = "auto"
NONE: Final = "none"

_SIGNS: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = (
    (HARMONY, lambda text: "<|channel|>" in text and "<|message|>" in text),
    ("mistral", lambda text: "[TOOL_CALLS]" in text),
    ("kimi", lambda text: "<|tool_call_begin|>" in text),
    ("deepseek", lambda text: "<｜tool▁call" in text),
    ("dsml-spaced", lambda text: "<｜DSML｜ invoke" in text),
    ("dsml", lambda text: "｜DSML｜" in text),
    ("minimax", lambda text: "<minimax:tool_call>" in text),
    ("glm", lambda text: "<arg_key>" in text),
    ("qwen-xml", lambda text: "<function=" in text and "<parameter=" in text),
    ("hermes", lambda text: "<tool_call>" in text),
    ("pythonic", lambda text: "<|header_start|>" in text),
    ("llama-json", lambda text: "<|python_tag|>" in text or ("<|start_header_id|>" in text and '"parameters"' in text)),
)


def family_of(template: str) -> str | None:
    """The format that a model writes calls in, by the source of its chat ``template``; None where it is not known."""
    return next((name for name, is_so in _SIGNS if is_so(template)), None)


@dataclass(frozen=True)
class Dialect:
    """How a model writes reasoning and calls. ``family``: one of `NAMES`, None where none is known. ``declared``: what
    the model's own tokenizer says of it, which comes first but under a grammar, as that is of the family."""

    family: str | None = None
    think: tuple[tuple[str, str], ...] = ()
    declared: Declared | None = None

    @property
    def calls(self) -> bool:
        """Whether calls can be read."""
        return self.family is not None or (self.declared is not None and self.declared.calls)

    @property
    def reasons(self) -> bool:
        """Whether reasoning can be told from the rest."""
        told = self.declared is not None and self.declared.reasons
        return bool(self.think) or self.family == HARMONY or told

    @property
    def special(self) -> frozenset[str]:
        """Special tokens that the reader must see."""
        seen = {each for pair in self.think for each in pair}
        if self.declared is not None:
            seen |= self.declared.special
        if self.family == HARMONY:
            seen |= set(harmony.SPECIAL)
        elif self.family is not None:
            seen |= set(FORMATS[self.family].special)
        return frozenset(seen)

    def shown(self, *, own: bool = False) -> Mapping[str, str]:
        """How the special tokens are written that the reader must see, by their name. ``own``: as of `reader`."""
        marked = harmony.SPECIAL if self.family == HARMONY and (self.declared is None or own) else ()
        return {name: f"{harmony.TOKEN}{name}" if name in marked else name for name in self.special}

    def new_id(self) -> str:
        """An id for a call. Mistral's templates refuse others than nine letters and digits."""
        return uuid4().hex[:9] if self.family == "mistral" else f"call_{uuid4().hex[:24]}"

    def reader(self, prompt_end: str, tools: Tools | None, *, own: bool = False, pieces: bool = False) -> Reads:
        """Reader of an answer to a prompt that ends with ``prompt_end``. ``tools``: None where no calls are wanted.
        ``own``: it follows a grammar of the family's format. ``pieces``: give calls as they are written, where that
        carries JSON, as `CallPiece`."""
        if self.declared is not None and not own:
            return self.declared.reader(prompt_end, tools)
        if self.family == HARMONY:
            return harmony.Harmony(tools, pieces=pieces)
        if self.family is None and not self.think:
            return Plain()
        form = None if self.family is None or tools is None else FORMATS[self.family]
        end = prompt_end.rstrip()
        thinking = next((pair for pair in self.think if end.endswith(pair[0])), None)
        head = HEADS.get(self.family or "") if pieces else None
        told = None if head is None else Pieces(head)
        return Reader(form, self.think, thinking=thinking, tools=tools, pieces=told)


def check_parser(name: str) -> None:
    """Raises `ConfigError` unless ``name`` is one of `NAMES`, `NONE` or `AUTO`."""
    if name not in (AUTO, NONE, *NAMES):
        raise ConfigError(f"--tool-parser: {name!r} is not one of {', '.join((AUTO, NONE, *NAMES))}")


def dialect(template: str | None, parser: str = AUTO, response: Mapping[str, Any] | None = None) -> Dialect:
    """The dialect of a model with a chat ``template`` and a ``response`` template. ``parser``: one of `NAMES` for the
    calls, `NONE` or `AUTO`."""
    check_parser(parser)
    source = template or ""
    name = family_of(source) if parser == AUTO else None if parser == NONE else parser
    told = [pair for pair in THINK if pair[1] in source]
    own = FORMATS[name].markers.think if name is not None and name != HARMONY else ()
    return Dialect(name, tuple(dict.fromkeys((*told, *own))), declared(response) if parser == AUTO else None)
