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
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from ferrule.errors import EngineError, FabricError, FerruleError, ModelUnavailable, RequestError
from ferrule.serve.http.error_forms import AnthropicErrorBody, error_body, error_type
from ferrule.serve.http.respond import respond

log = logging.getLogger(__name__)

STATUSES: Final[Mapping[int, str]] = {
    400: "the body is no JSON, or a field has no meaning here; `param` names it",
    401: "the API key is missing or wrong",
    403: "without a key, another name than a loopback one",
    404: "a model that is not served here, or that the key may not use, or a response that is not kept",
    408: "the request was not complete in time",
    413: "the body is too large",
    415: "the body is not declared as JSON",
    429: "too many requests are waiting, or a limit of the key is reached; `Retry-After` says when to try again",
    431: "the headers are too many or too large",
    500: "not foreseen; the server's log has the details",
    503: "the model does not run, or the server is closing",
}
REFERENCE: Final = "#/components/schemas/"
EVENT: Final = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
"""One event of a stream, as OpenAPI 3.2 describes them."""
OF_ALL: Final = (400, 401, 403, 408, 431, 503)
OF_BODIES: Final = (400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 503)


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


class Description(dict[str, Any]):
    """One response of a route, as OpenAPI describes it. ``structs``: what its JSON may be, for `install` to find."""

    structs: tuple[type[msgspec.Struct], ...] = ()


def described(
    *statuses: int, ok: type[msgspec.Struct] | None = None, stream: str | None = None
) -> dict[int | str, dict[str, Any]]:
    """Responses of a route for FastAPI's description of the API: these errors, each as the API of its path writes them.

    ``ok``: JSON of the answer with status 200, ``stream``: its media type where it comes in pieces."""
    found: dict[int | str, dict[str, Any]] = {status: described_as(STATUSES[status]) for status in statuses}
    if ok is not None:
        found[200] = described_as("the answer", ok, stream=stream)
    return found


def described_as(text: str, *structs: type[msgspec.Struct], stream: str | None = None) -> Description:
    """One response: what it is, one of the ``structs`` as JSON (none: an error), and media type of a ``stream``
    instead."""
    found = Description(description=text)
    found.structs = structs
    if stream is not None:
        found["content"] = {stream: {"schema": EVENT if stream == "text/event-stream" else {}}}
    return found


def complete(description: dict[str, Any], app: FastAPI, *, keyed: bool) -> None:
    """Tell in FastAPI's ``description`` of ``app`` what it cannot know: structs, keys, and that bad bodies are 400."""
    components = description.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    if keyed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for methods in description["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        for status, response in route.responses.items():
            if not isinstance(response, Description):
                continue
            structs = response.structs or (error_type(route.path),)
            room = structs[0].__module__.split(".")[-2]  # APIs have structs of the same names
            found, parts = msgspec.json.schema_components(structs, ref_template=f"{REFERENCE}{room}.{{name}}")
            schemas.update({f"{room}.{name}": part for name, part in parts.items()})
            schema = found[0] if len(structs) == 1 else {"anyOf": list(found)}
            for method in route.methods or ():
                operation = description["paths"][route.path_format][method.lower()]
                told = operation["responses"][str(status)]
                told.setdefault("content", {})["application/json"] = {"schema": schema}
                if keyed and status == 401:
                    operation["security"] = [{"key": []}]


def methods_of(request: Request) -> set[str]:
    """Methods that a path takes by all routes of that path, of which starlette tells the first one's; one that is
    written out is not that of a parameter."""
    routes = [route for route in request.app.routes if isinstance(route, APIRoute)]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    path = min((route.path_format for route in found), key=lambda each: each.count("{"), default="")
    return {method for route in found if route.path_format == path for method in route.methods or ()}


def install(app: FastAPI, *, keyed: bool) -> None:
    """Make every error of ``app``'s routes leave in the form of its API, and the app's description say so.

    ``keyed``: requests need a key, by the same description."""

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_error(error.errors()).response(request.url.path)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = http_error(error, request.url.path)
        response = answer.response(request.url.path)
        response.headers.update(error.headers or {})
        if answer.status == 405:
            response.headers["Allow"] = ", ".join(sorted(methods_of(request)))
        return response

    async def on_error(request: Request, error: Exception) -> Response:
        return api_error(error).response(request.url.path)

    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            complete(describe(), app, keyed=keyed)
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ApiError, on_error)
    app.add_exception_handler(FerruleError, on_error)
    app.add_exception_handler(Exception, on_error)
