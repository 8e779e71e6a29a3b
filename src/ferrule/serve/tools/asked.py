"""Tools that a request offers, and what its template is told of them and of reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrule.engine import Tokenizer
from ferrule.errors import RequestError
from ferrule.serve.openai.schemas import ChatRequest, unsupported
from ferrule.serve.tools.families import Dialect
from ferrule.serve.tools.parts import Tools

_SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables by which templates switch reasoning on and off."""
OWN_NAMES: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables of a template that requests have other fields for, or that hold the answer's form."""


@dataclass(frozen=True)
class Asked:
    """``shown``: tools as the template gets them. ``tools``: those that may be called; None where none may be.
    ``options``: further variables of the template. ``strict``: tools whose calls shall follow their schema.
    ``forced``: tools of which one must be called; None where the model decides. ``budget``: of reasoning, in tokens."""

    shown: Sequence[Mapping[str, Any]] | None
    tools: Tools | None
    options: Mapping[str, Any]
    parallel: bool = True
    strict: frozenset[str] = frozenset()
    forced: frozenset[str] | None = None
    budget: int | None = None

    @property
    def reasons(self) -> bool:
        """Whether the request leaves the model its reasoning."""
        return self.budget != 0 and not any(self.options.get(name) is False for name in _SWITCHES)


def asked(body: ChatRequest, tokenizer: Tokenizer, dialect: Dialect) -> Asked:
    """What ``body`` asks for. Raises `RequestError` where the model cannot do it."""
    options, budget = template_options(body), body.thinking_limit
    if body.tool_choice == "none" or (not body.tools and body.tool_choice in (None, "auto")):
        return Asked(None, None, options, budget=budget)
    forced = _forced(body)
    if "tools" not in tokenizer.template_names:
        raise unsupported("tools", "this model's chat template knows no tools; leave them out, or serve another model")
    if not dialect.calls or (forced is not None and dialect.family is None):
        raise unsupported(
            "tools",
            "how this model writes calls cannot be told by its chat template; start the server with --tool-parser NAME",
        )
    offered = body.tools or []
    tools = Tools({each.function.name: each.function.parameters or {} for each in offered})
    shown = [each.model_dump(exclude_none=True) for each in offered]
    strict = frozenset(each.function.name for each in offered if each.function.is_strict)
    one = body.parallel_tool_calls is False or isinstance(body.tool_choice, dict)  # of a named tool one call, as OpenAI
    return Asked(shown, tools, options, not one, strict, forced, budget)


def _forced(body: ChatRequest) -> frozenset[str] | None:
    """Tools of which ``body`` wants one called. Raises `RequestError` where it offers none such."""
    names = frozenset(each.function.name for each in body.tools or ())
    choice = body.tool_choice
    if choice in (None, "auto"):
        return None
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if choice.get("type") != "function" or not isinstance(name, str):
            raise RequestError(
                'tool_choice: must be none, auto, required or {"type": "function", "function": {"name": "…"}}',
                param="tool_choice",
            )
        if name not in names:
            raise RequestError(f"tool_choice: no tool of tools is called {name!r}", param="tool_choice")
        return frozenset((name,))
    if not names:
        raise RequestError("tool_choice: a call is required, but tools has none to call", param="tool_choice")
    return names


def template_options(body: ChatRequest) -> dict[str, Any]:
    """Variables by which templates are told how to reason, and what the request gives for the template by name."""
    options = dict[str, Any]()
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            options |= dict.fromkeys(_SWITCHES, False)
    if body.thinking_limit == 0:
        options |= dict.fromkeys(_SWITCHES, False)
    given = body.chat_template_kwargs or {}
    taken = OWN_NAMES & given.keys()
    if taken:
        raise RequestError(f"chat_template_kwargs: {min(taken)!r} cannot be given here", param="chat_template_kwargs")
    return options | given
