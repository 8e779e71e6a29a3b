"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import Field

from ferrule.errors import RequestError
from ferrule.serve.answer.prepared import RequestReader
from ferrule.serve.answer.prompt import encode
from ferrule.serve.answer.service import Service
from ferrule.serve.openai.chat import chat_tokens
from ferrule.serve.openai.sampling import check_token
from ferrule.serve.openai.schemas import ChatRequest, OfferedTool, Whole, unsupported
from ferrule.serve.tools.messages import Body, Clean, Message


class TokenizeRequest(Body):
    """``add_special_tokens``: by default of a prompt, not of a chat, whose template writes them."""

    model: str | None = None
    prompt: Clean = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[OfferedTool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[Whole]


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    prompt: str


async def tokenized(reader: RequestReader, body: TokenizeRequest) -> Tokenized:
    """Raises `RequestError` when ``body`` has no text, or asks for a template that is not the model's."""
    service, engine = reader.service, reader.service.engine
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt", code="invalid_value")
    if body.chat_template is not None or body.continue_final_message:
        field = "continue_final_message" if body.chat_template is None else "chat_template"
        raise unsupported(field, "chats are written by the model's own template, each message complete")
    if body.messages is None:
        special = body.add_special_tokens is not False
        text = body.prompt or ""
        tokens = await reader.run(lambda: encode(engine, text, field="prompt", add_special_tokens=special))
    else:
        fields = {"messages": body.messages, "tools": body.tools, "chat_template_kwargs": body.chat_template_kwargs}
        tokens = await chat_tokens(
            reader,
            lambda: ChatRequest.model_validate(fields),
            opened=body.add_generation_prompt,
            special=bool(body.add_special_tokens),
        )
    told = None
    if body.return_token_strs:
        told = await reader.run(lambda: [service.vocabulary.text_of(token) for token in tokens])
    return Tokenized(len(tokens), engine.max_context, tokens, told)


def detokenized(service: Service, body: DetokenizeRequest) -> Detokenized:
    """Special tokens are written by their names. Raises `RequestError` for unknown ids."""
    for token in body.tokens:
        check_token(token, service.engine.vocab_size, "tokens")
    return Detokenized(service.engine.tokenizer.decode(body.tokens, skip_special_tokens=False))
