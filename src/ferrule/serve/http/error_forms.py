"""Errors as each API's clients expect them: the struct that an error is sent as, by the path of the request."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

import msgspec

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Failure(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: Failure


class AnthropicFailure(msgspec.Struct):
    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct):
    error: AnthropicFailure
    type: str = "error"
    request_id: str = msgspec.field(default_factory=lambda: f"req_{uuid.uuid4().hex}")


class OllamaErrorBody(msgspec.Struct):
    error: str


ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    **TYPES,
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""https://platform.claude.com/docs/en/api/errors"""


def error_type(path: str) -> type[msgspec.Struct]:
    """Struct of the errors of the API that ``path`` belongs to."""
    if path.startswith("/v1/messages"):
        return AnthropicErrorBody
    return OllamaErrorBody if path.startswith("/api/") else ErrorBody


def error_body(path: str, status: int, message: str, param: str | None, code: str | None) -> msgspec.Struct:
    """The error as the API that ``path`` belongs to writes it."""
    default = "server_error" if status >= 500 else "invalid_request_error"
    kind = error_type(path)
    if kind is AnthropicErrorBody:
        default = "api_error" if status >= 500 else default
        if code == "context_length_exceeded":  # Anthropic's words, by which Claude Code knows that it is to compact
            message = f"prompt is too long: {message}"
        return AnthropicErrorBody(AnthropicFailure(ANTHROPIC_TYPES.get(status, default), message))
    if kind is OllamaErrorBody:
        return OllamaErrorBody(message)
    return ErrorBody(Failure(message, TYPES.get(status, default), param, code))
