"""Llama's formats: JSON objects (3.1 and later), or a list of calls as Python writes them (3.2, 4)."""

from __future__ import annotations

import ast
import re
from typing import Any

from ferrule.serve.tools.arguments import MalformedError, call, call_of, json_end, python_end, read_json
from ferrule.serve.tools.parts import Block, Call, Markers, Tools

TAG = "<|python_tag|>"


class LlamaJson:
    """``{"name": …, "parameters": {…}}`` as the whole answer; several are separated by ``;``."""

    markers = Markers((TAG,), ("{", ";", ","))
    special = (TAG,)

    def read(self, text: str, tools: Tools, *, after_call: bool, ended: bool) -> Block | None:
        if text[0] in ";,":
            return _separator(text, "{", after_call)
        tagged = text.startswith(TAG)
        at = len(text) - len(text[len(TAG) :].lstrip()) if tagged else 0
        if at == len(text):
            return None
        if text[at] != "{":
            return Block(None, at)
        end = json_end(text, at)
        if end is None:
            return None
        try:
            found = call_of(read_json(text[at:end]))
        except MalformedError:
            return Block(None, end)
        # Without a marker JSON may as well be the answer.
        return Block((found,) if tagged or found.name in tools.parameters else None, end)


class Pythonic:
    """``[name(key=value), …]`` as the whole answer."""

    markers = Markers(("<|python_start|>", "<|python_end|>", TAG), ("[",))
    special = ("<|python_start|>", "<|python_end|>", TAG)
    _begins = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*(?:\(.*)?)?", re.DOTALL)

    def read(self, text: str, tools: Tools, *, after_call: bool, ended: bool) -> Block | None:
        if text.startswith("<|python_end|>"):
            return Block(() if after_call else None, len("<|python_end|>"))
        at = 0
        for tag in ("<|python_start|>", TAG):
            if text.startswith(tag):
                at = len(text) - len(text[len(tag) :].lstrip())
        if at == len(text):
            return None
        if not self._begins.fullmatch(text, at):
            return Block(None, max(at, 1))
        end = python_end(text, at)
        if end is None:
            return None
        try:
            calls = tuple(_python_call(each) for each in _list(text[at:end]))
        except MalformedError:
            return Block(None, end)
        known = all(each.name in tools.parameters for each in calls)
        return Block(calls if known and calls else None, end)


def _separator(text: str, opening: str, after_call: bool) -> Block | None:
    """What stands between two calls says nothing; elsewhere it is text."""
    rest = text[1:].lstrip()
    if after_call and not rest:
        return None
    return Block(() if after_call and rest.startswith(opening) else None, 1)


def _list(text: str) -> list[ast.expr]:
    """Raises `MalformedError` where ``text`` is no list."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedError(str(error)) from None
    if not isinstance(tree, ast.List):
        raise MalformedError("no list")
    return tree.elts


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise MalformedError("a call has arguments by name")
    return call(ast.unparse(node.func), {str(each.arg): _value(each.value) for each in node.keywords})


def _value(node: ast.expr) -> Any:
    names = {"true": True, "false": False, "null": None}
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(each) for each in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise MalformedError(str(error)) from None


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise MalformedError("keys are strings")
    return node.value


LLAMA_JSON = LlamaJson()
PYTHONIC = Pythonic()
