"""``POST /api/chat`` and ``POST /api/generate``: told as OpenAI's chat, and answered in lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi.responses import Response

from ferrule.errors import RequestError
from ferrule.serve.answer.capabilities import can_call
from ferrule.serve.answer.prompt import too_long
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.sequences import Job
from ferrule.serve.answer.service import Service
from ferrule.serve.http.respond import respond
from ferrule.serve.models.offer import is_loaded
from ferrule.serve.ollama.form import ChatForm, GenerateForm, Watch
from ferrule.serve.ollama.objects import ChatLine, GenerateLine, Message
from ferrule.serve.ollama.schemas import ChatRequest, GenerateRequest, GenerationRequest, Options
from ferrule.serve.openai import schemas as openai
from ferrule.serve.openai.chat import prepare_chat
from ferrule.serve.openai.completions import prompt_tokens
from ferrule.serve.openai.sampling import check_token, sampling_params
from ferrule.serve.openai.schemas import unsupported
from ferrule.serve.tools import messages


def answer_chat(service: Service, body: ChatRequest, watch: Watch) -> Response:
    """The answer to ``body``. Raises `RequestError` when it asks for something that cannot be done."""
    told = [told_message(service, at, message) for at, message in enumerate(body.messages or ())]
    if body.tools and not can_call(service.engine, service.dialect):
        raise RequestError(f"{body.model} does not support tools", param="tools", code="unsupported")
    tools = [openai.OfferedTool(type="function", function=each.function) for each in body.tools or ()]
    chat = prepare_chat(service, as_openai(service, body, told, tools=tools or None))
    form = ChatForm(body.model, watch, thinking=body.think is not False, logprobs=bool(body.logprobs))
    return answer(service, body, chat.jobs[0], form, watch)


def answer_generate(service: Service, body: GenerateRequest, watch: Watch) -> Response:
    """The same for a single prompt, which a model with a chat template gets as a chat's."""
    if body.template:
        raise unsupported("template", "it is the model's own; write the whole prompt, and send it with raw")
    if body.suffix:
        raise unsupported("suffix", "text can only be continued, not filled in")
    refuse_images(service, body.images, "images")
    raw = body.raw or not service.engine.tokenizer.has_chat_template
    if raw and (body.system or body.context):
        why = "raw is" if body.raw else "a prompt of a model without a chat template is"
        raise RequestError(f"{why} the whole prompt: leave out system and context", param="raw")
    job = raw_job(service, body) if raw else chat_job(service, body)
    form = GenerateForm(
        body.model,
        watch,
        thinking=body.think is not False,
        logprobs=bool(body.logprobs),
        raw=bool(raw),
        prompt=None if raw else job.prompt,
    )
    return answer(service, body, job, form, watch)


def answer(service: Service, body: GenerationRequest, job: Job, form: ChatForm | GenerateForm, watch: Watch) -> Answer:
    job = replace(job, heard=watch.heard)
    watch.read_now()
    return Answer(service, [job], form, prompt_tokens=len(job.prompt), stream=body.streamed)


def loaded(service: Service, body: ChatRequest | GenerateRequest) -> Response:
    """Answer to a request without a prompt, which only wants the model in memory, or out of it. An only model stays."""
    told: Any = {"model": body.model, "done": True, "done_reason": "unload" if body.keep_alive == 0 else "load"}
    if is_loaded(service.engine):
        with service.admit(0):
            pass
    if isinstance(body, ChatRequest):
        return respond(ChatLine(message=Message(""), **told))
    return respond(GenerateLine(response="", **told))


def raw_job(service: Service, body: GenerateRequest) -> Job:
    engine = service.engine
    told = as_openai(service, body, [])
    params = sampling_params(told, engine.default_sampling, vocab_size=engine.vocab_size)
    params = service.grammars.constrained(told, params)
    return Job(0, prompt_tokens(engine, body.prompt), params, tuple(told.stop), continues=True)


def chat_job(service: Service, body: GenerateRequest) -> Job:
    """The prompt as the next message of a chat, whose beginning may be given as tokens (``context``)."""
    told = [messages.Message(role="user", content=body.prompt)]
    if body.system:
        told.insert(0, messages.Message(role="system", content=body.system))
    (job,) = prepare_chat(service, as_openai(service, body, told)).jobs
    return job if not body.context else replace(job, prompt=continued(service, body.context, job.prompt))


def continued(service: Service, context: Sequence[int], prompt: tuple[int, ...]) -> tuple[int, ...]:
    """``prompt`` behind the ``context`` of an earlier answer; the tokens that begin every text stay in front only."""
    engine = service.engine
    for token in context:
        check_token(token, engine.vocab_size, "context")
    begin = tuple(engine.tokenizer.encode("", add_special_tokens=True))
    if begin and prompt[: len(begin)] == begin and tuple(context[: len(begin)]) == begin:
        prompt = prompt[len(begin) :]
    together = (*context, *prompt)
    if len(together) >= engine.max_context:
        raise too_long(engine, f"{len(together)} tokens with the prompt,", "context")
    return together


def told_message(service: Service, at: int, message: Any) -> messages.Message:
    """A message as OpenAI's."""
    refuse_images(service, message.images, f"messages.{at}.images")
    return messages.Message.model_construct(
        role=message.role,
        content=message.content,
        name=message.name or message.tool_name,
        reasoning_content=message.thinking or message.reasoning_content or message.reasoning,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
    )


def refuse_images(service: Service, images: Sequence[str], field: str) -> None:
    """Raise `RequestError` for ``images`` that the model cannot see."""
    if images:
        raise unsupported(field, f"{service.engine.name} sees no images, only text")


def as_openai(
    service: Service,
    body: GenerationRequest,
    told: list[messages.Message],
    *,
    tools: list[openai.OfferedTool] | None = None,
) -> openai.ChatRequest:
    """``body`` as a request of OpenAI's. Its numbers were checked as Ollama's, whose limits are wider."""
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs: only allowed when logprobs is true", param="top_logprobs")
    return openai.ChatRequest.model_construct(
        messages=told,
        tools=tools,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        response_format=response_format(body.format),
        **thinking_fields(service, body),
        **sampling_fields(body.options or Options.model_construct()),
    )


def response_format(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if given == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "format", "schema": given}}


def thinking_fields(service: Service, body: GenerationRequest) -> dict[str, Any]:
    """What a template is told of reasoning. Raises `RequestError` where it is asked of a model that has none."""
    if body.think is None:
        return {}
    if body.think is False:
        return {"reasoning_effort": "none"} if service.dialect.reasons else {}
    if not service.dialect.reasons:
        raise RequestError(f"{body.model} does not support thinking", param="think", code="unsupported")
    told: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}
    return told if body.think is True else {**told, "reasoning_effort": body.think}


def sampling_fields(options: Options) -> dict[str, Any]:
    penalties = {
        "repetition_penalty": 1.0 if options.repeat_penalty == 0 else options.repeat_penalty,  # some mean off by 0
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    if options.repeat_last_n == 0:  # tokens that they look back at
        penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {
        **penalties,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": None if options.seed == -1 else options.seed,  # -1: at random
        "stop": options.stop,
        # Otherwise as many as there is room for: -1, -2 and, as with Ollama, 0.
        "max_tokens": options.num_predict if (options.num_predict or 0) > 0 else None,
    }
