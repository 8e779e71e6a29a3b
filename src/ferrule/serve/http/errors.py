"""Errors of requests, with the status that clients expect."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from ferrule.errors import EngineError, FabricError, FerruleError, ModelUnavailable, RequestError
from ferrule.serve.http.error_forms import AnthropicErrorBody, ErrorBody, OllamaErrorBody, error_body
from ferrule.serve.http.respond import respond

log = logging.getLogger(__name__)

STATUSES: Final[Mapping[int, str]] = {
    400: "the body is no JSON, or a field has no meaning here; `param` names it",
    401: "the API key is missing or wrong",
    403: "without a key, another name than a loopback one",
    404: "a model that is not served here, or a response that is not kept",
    408: "the request was not complete in time",
    413: "the body is too large",
    415: "the body is not declared as JSON",
    429: "too many requests are waiting",
    500: "not foreseen; the server's log has the details",
    503: "the model does not run, or the server is closing",
}
REFERENCE: Final = "#/components/schemas/{name}"
OF_ALL: Final = (401, 403, 408, 503)
OF_BODIES: Final = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503)


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error. ``param`` is the field at fault and ``code`` a word for programs, where there is one.

    ``retry_after``: seconds after which the same request may succeed.
    """

    status: int
    message: str
    code: str | None = field(default=None, kw_only=True)
    param: str | None = field(default=None, kw_only=True)
    retry_after: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return self.message

    def body(self, path: str = "") -> msgspec.Struct:
        """As the API that ``path`` belongs to writes it; OpenAI's otherwise."""
        return error_body(path, self.status, self.message, self.param, self.code)

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    def response(self, path: str) -> Response:
        """The answer to a request for ``path``."""
        body = self.body(path)
        headers = self.headers
        if isinstance(body, AnthropicErrorBody):
            headers["request-id"] = body.request_id
        return respond(body, self.status, headers)


def api_error(error: Exception) -> ApiError:
    """Answer to a client about ``error``. An unforeseen one is logged here and told without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), code=error.code, param=error.param)
    if isinstance(error, ModelUnavailable):
        return ApiError(503, str(error), code=error.code, retry_after=error.retry_after)
    if isinstance(error, (EngineError, FabricError)):
        return ApiError(503, str(error), code=error.code)
    if isinstance(error, FerruleError):
        return ApiError(500, str(error), code=error.code)
    log.error("a request failed in a way that was not foreseen", exc_info=error)
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first of pydantic's ``errors``, with the field's name in front."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be parsed")
        place = first["loc"][-1]
        return ApiError(400, f"the body is not valid JSON: {reason} at character {place}", code="invalid_json")
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
    if not where:
        return ApiError(400, "the body must be a JSON object", code="invalid_json")
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        return ApiError(400, f"{where}: this field is required", code="missing_required_parameter", param=where)
    return ApiError(400, f"{where}: {message}", code="invalid_value", param=where)


def http_error(error: HTTPException, path: str) -> ApiError:
    """Starlette's own refusals: unknown path, wrong method, and what reading the body raised."""
    if error.status_code == 404:
        return ApiError(404, f"there is no {path} here; see /v1/models, /v1/chat/completions, /v1/messages, /health")
    if error.status_code == 405:
        return ApiError(405, f"{path} does not accept this method", code="method_not_allowed")
    return ApiError(error.status_code, str(error.detail))


def described(*statuses: int, body: type[msgspec.Struct] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """Responses of a route for FastAPI's description of the API: these errors."""
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(name=body.__name__)}}}
    return {status: {"description": STATUSES[status], "content": content} for status in statuses}


def install(app: FastAPI) -> None:
    """Make every error of ``app``'s routes leave in the form of its API, and the app's description say so."""

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_error(error.errors()).response(request.url.path)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = http_error(error, request.url.path)
        response = answer.response(request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def on_error(request: Request, error: Exception) -> Response:
        return api_error(error).response(request.url.path)

    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        bodies = [ErrorBody, AnthropicErrorBody, OllamaErrorBody]
        _, errors = msgspec.json.schema_components(bodies, ref_template=REFERENCE)
        schemas = description["components"]["schemas"]
        schemas.update(errors)
        for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's answer with 422: ours is 400
            schemas.pop(unused, None)
        for methods in description["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        return description

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ApiError, on_error)
    app.add_exception_handler(FerruleError, on_error)
    app.add_exception_handler(Exception, on_error)
