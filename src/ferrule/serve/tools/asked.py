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

OWN_NAMES: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables of a template that requests have other fields for, or that hold the answer's form."""


@dataclass(frozen=True)
class Asked:
    """``shown``: tools as the template gets them. ``tools``: those that may be called; None where none may be.
    ``options``: further variables of the template."""

    shown: Sequence[Mapping[str, Any]] | None
    tools: Tools | None
    options: Mapping[str, Any]
    parallel: bool = True


def asked(body: ChatRequest, tokenizer: Tokenizer, dialect: Dialect) -> Asked:
    """What ``body`` asks for. Raises `RequestError` where the model cannot do it."""
    options = template_options(body)
    if not body.tools or body.tool_choice == "none":
        return Asked(None, None, options)
    if body.tool_choice not in (None, "auto"):
        raise unsupported(
            "tool_choice",
            "calls cannot be forced; leave it to the model (auto), and say in the prompt what it shall do",
        )
    if "tools" not in tokenizer.template_names:
        raise unsupported("tools", "this model's chat template knows no tools; leave them out, or serve another model")
    if dialect.family is None:
        raise unsupported(
            "tools",
            "how this model writes calls cannot be told by its chat template; start the server with --tool-parser NAME",
        )
    tools = Tools({each.function.name: each.function.parameters or {} for each in body.tools})
    shown = [each.model_dump(exclude_none=True) for each in body.tools]
    return Asked(shown, tools, options, parallel=body.parallel_tool_calls is not False)


def template_options(body: ChatRequest) -> dict[str, Any]:
    """Variables by which templates are told how to reason, and what the request gives for the template by name."""
    options = dict[str, Any]()
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            options |= {"enable_thinking": False, "thinking": False}
    given = body.chat_template_kwargs or {}
    taken = OWN_NAMES & given.keys()
    if taken:
        raise RequestError(f"chat_template_kwargs: {min(taken)!r} cannot be given here", param="chat_template_kwargs")
    return options | given
