"""Paths of the Responses API."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from ferrule.errors import RequestError
from ferrule.serve.answer.form import Form
from ferrule.serve.answer.prepared import prepared
from ferrule.serve.http.errors import OF_ALL, OF_BODIES, described
from ferrule.serve.http.exchange import current_exchange
from ferrule.serve.http.respond import respond
from ferrule.serve.models import Models
from ferrule.serve.openai.responses.answer import answer_response, context_of, own_items, read_request
from ferrule.serve.openai.responses.objects import Deleted, InputTokens, ItemList, ResponseBody
from ferrule.serve.openai.responses.schemas import ResponsesRequest
from ferrule.serve.openai.responses.store import Responses
from ferrule.serve.openai.schemas import unsupported

MOST_LISTED = 100


def add_routes(app: FastAPI, models: Models) -> None:
    responses = Responses()

    def owner() -> str:
        """Each key's responses are its own, whoever has its name later; without keys there is one owner."""
        return current_exchange().caller.identity

    async def read(body: ResponsesRequest, request: Request, *, count: bool) -> Response:
        service = await (models.known(body.model) if count else models.service(body.model))
        context = context_of(body, owner(), responses)
        own = own_items(body, context)

        def made() -> Response:
            if count:
                return respond(InputTokens(read_request(service, body, context, own).chat.prompt_tokens))
            return answer_response(service, body, context, own)

        grammar = bool(body.tools) or bool(body.text and body.text.format)
        slow = bool(context.before) or grammar or body.truncation == "auto"
        return await prepared(service, request, made, slow=slow)

    @app.post("/v1/responses", responses=described(*OF_BODIES, ok=ResponseBody, stream=Form.media_type))
    async def create(body: ResponsesRequest, request: Request) -> Response:
        return await read(body, request, count=False)

    @app.post("/v1/responses/input_tokens", responses=described(*OF_BODIES, ok=InputTokens))
    async def input_tokens(body: ResponsesRequest, request: Request) -> Response:
        return await read(body, request, count=True)

    @app.get("/v1/responses/{name}", responses=described(404, *OF_ALL, ok=ResponseBody))
    async def retrieve(name: str, request: Request, stream: bool = False) -> Response:
        if stream:
            raise unsupported("stream", "a response that is kept is complete; get it without")
        return respond(responses.get(name, owner()).body)

    @app.delete("/v1/responses/{name}", responses=described(404, *OF_ALL, ok=Deleted))
    async def delete(name: str, request: Request) -> Response:
        responses.delete(name, owner())
        return respond(Deleted(name))

    @app.get("/v1/responses/{name}/input_items", responses=described(404, *OF_ALL, ok=ItemList))
    async def list_items(
        name: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        items = responses.get(name, owner()).input
        if order == "desc":
            items.reverse()
        if after is not None:
            at = next((at for at, item in enumerate(items) if item["id"] == after), None)
            if at is None:
                raise RequestError(f"after: there is no item {after!r} in this response", param="after")
            items = items[at + 1 :]
        page = items[:limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        return respond(ItemList(page, first, last, len(items) > limit))
