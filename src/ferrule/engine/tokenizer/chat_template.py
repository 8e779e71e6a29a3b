"""Chat templates: Jinja programs of a model's makers, which are not trusted.

What a template finds is what transformers gives it (`transformers.utils.chat_template_utils`, with which tests compare
it): the same settings, filters, functions and limits. Importing that would take ten times the time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ferrule.errors import ModelError


class ChatTemplate:
    """The template ``source`` of a model with ``special`` tokens (``bos_token`` and others, by name).

    ``names``: the variables that it reads. Raises `ModelError` with the line where it is no program: by its syntax, or
    a filter or test that does not exist."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._special = dict(special)
        try:
            environment = _environment()
            parsed = environment.parse(source)
            self._template = environment.from_string(parsed)
        except TemplateSyntaxError as error:
            raise ModelError(f"line {error.lineno}: {error.message}") from None
        except (RecursionError, ValueError, MemoryError) as error:
            raise ModelError(f"it cannot be compiled: {error}") from None
        self._strange = _strange(parsed, environment)
        self.names = frozenset(find_undeclared_variables(parsed))

    def fault(self) -> str | None:
        """Fault that makes requests fail: a filter that does not exist in a branch, or a plain message that cannot be
        rendered (which a template may refuse by itself). None where none is seen."""
        try:
            self.render([{"role": "user", "content": "Hello!"}])
        except Exception as error:  # noqa: BLE001 - a program of the model's makers
            return self._strange if type(error) is TemplateError else f"a plain message fails: {error}"
        return self._strange

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text. ``messages``, ``tools`` and ``options``, which are further variables, hold nothing
        but what JSON has; a message's fields that are None count as left out. Raises whatever the template does."""
        given = [{name: value for name, value in message.items() if value is not None} for message in messages]
        own = {"messages": given, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._template.render({"documents": None, **self._special, **(options or {}), **own})


def _strange(parsed: nodes.Template, environment: ImmutableSandboxedEnvironment) -> str | None:
    """The first filter or test that does not exist. Jinja refuses them, but not within branches."""
    for kind, known in ((nodes.Filter, environment.filters), (nodes.Test, environment.tests)):
        for each in parsed.find_all(kind):
            if each.name not in known:
                return f"line {each.lineno}: No {kind.__name__.lower()} named {each.name!r}"
    return None


class _Generation(Extension):
    """``{% generation %} … {% endgeneration %}``, by which training finds what the assistant said: just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own name and type

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """``dict`` without the attributes of the type, by which a template could leave the sandbox."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace`` that holds no names with an underscore in front, such as those of Python's internals."""

    def __init__(*args: Any, **named: Any) -> None:  # without `self`, which may be a name in the namespace
        this, given = args[0], dict(*args[1:], **named)
        for name in given:
            _check_name(name)
        Namespace.__init__(this, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template cannot store {name!r} in a namespace: it begins with an underscore")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda text: datetime.now().strftime(text),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own would escape what is special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
