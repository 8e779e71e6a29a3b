"""``POST /v1/chat/completions``: from messages to a prompt, and from pieces to OpenAI's chat objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from ferrule.engine import ChatMessage as EngineMessage
from ferrule.engine import Engine
from ferrule.errors import RequestError
from ferrule.serve.answer.form import Collected, Counts
from ferrule.serve.answer.prompt import encode
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.sequences import Job, choices
from ferrule.serve.answer.service import Service
from ferrule.serve.answer.transcript import Piece, TokenLogprob
from ferrule.serve.openai.form import OpenAIForm
from ferrule.serve.openai.identity import Identity
from ferrule.serve.openai.objects import (
    AnswerBody,
    CalledFunction,
    ChatChoice,
    ChatLogprobs,
    ChatMessage,
    ChatToken,
    Delta,
    ToolCall,
    Usage,
    chat_usage,
)
from ferrule.serve.openai.sampling import sampling_params
from ferrule.serve.openai.schemas import ChatRequest, refuse_unsupported, unsupported
from ferrule.serve.structured.chats import NO_TEXTS, TextTool, constrained_chat
from ferrule.serve.tools.asked import Asked, asked
from ferrule.serve.tools.families import HARMONY, Dialect
from ferrule.serve.tools.messages import template_messages
from ferrule.serve.tools.parts import Call, CallPiece, Part, Reasoning, Text
from ferrule.serve.tools.reading import ChatReading

PROMPT_END = 256
"""Characters at the end of a prompt by which is seen where an answer begins, and if its reasoning has been opened."""


@dataclass(frozen=True)
class PreparedChat:
    """A chat request, read: the sequences to generate, and how many tokens their prompt has."""

    jobs: tuple[Job, ...]
    prompt_tokens: int


def prepare_chat(
    service: Service, body: ChatRequest, *, pieces: bool = False, texts: Mapping[str, TextTool] = NO_TEXTS
) -> PreparedChat:
    """``body`` read. The other APIs' chats come here, too, told as OpenAI's. ``pieces``: the form takes `CallPiece`.
    ``texts``: those of its tools that take one text. Raises `RequestError` when it asks for something that cannot be
    done."""
    refuse_unsupported(body)
    engine = service.engine
    params = sampling_params(body, engine.default_sampling, vocab_size=engine.vocab_size)
    wanted = asked(body, engine.tokenizer, service.dialect)
    text = chat_text(engine, body, wanted, service.dialect)
    end, template = text[-PROMPT_END:], engine.tokenizer.chat_template or ""
    constrained = constrained_chat(service.grammars, body, wanted, service.dialect, template, end, texts=texts)
    if constrained.constraint is not None:
        params = replace(params, constraint=constrained.constraint)
    prompt = encode(engine, text, field="messages", add_special_tokens=False)
    sure = constrained.sure
    reading = ChatReading(service.dialect, end, wanted.tools, wanted.parallel, own=sure, pieces=pieces and sure)
    jobs = tuple(
        Job(index, prompt, each, tuple(body.stop), continues=bool(body.continue_final_message), chat=reading)
        for index, each in enumerate(choices(params, body.n or 1))
    )
    return PreparedChat(jobs, len(prompt))


def answer_chat(service: Service, body: ChatRequest, identity: Identity) -> Answer:
    """The answer to ``body``. Raises `RequestError` as `prepare_chat` does."""
    chat = prepare_chat(service, body, pieces=bool(body.stream))
    form = ChatForm(identity, body.wants_usage, len(chat.jobs), bool(body.logprobs))
    return Answer(service, chat.jobs, form, prompt_tokens=chat.prompt_tokens, stream=bool(body.stream))


def chat_text(engine: Engine, body: ChatRequest, wanted: Asked, dialect: Dialect, *, opened: bool = True) -> str:
    """The conversation as text, with the opening of the answer's turn if ``opened``, and what of it the request gives.

    Raises `RequestError` where the model's template refuses it, or it cannot be encoded: tools, arguments and options
    may spell halves of characters as JSON does."""
    messages = template_messages(body.messages)
    begun = _begun(messages, dialect) if body.continue_final_message else ""
    text = engine.tokenizer.render_chat(
        messages, tools=wanted.shown, options=wanted.options, add_generation_prompt=opened
    )
    thinking = next((end for start, end in dialect.think if text.rstrip().endswith(start)), None)
    if begun and thinking is not None:  # what was begun is no reasoning
        text += f"{thinking}\n\n"
    text += begun
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(
            "messages: they or the tools are not valid Unicode: half a surrogate pair", param="messages"
        ) from None
    return text


def _begun(messages: list[EngineMessage], dialect: Dialect) -> str:
    """Text of the last of ``messages``, which is taken out."""
    last = messages.pop()
    if last["role"] != "assistant" or "tool_calls" in last:
        raise RequestError("continue_final_message: the last message is no text of the assistant's", param="messages")
    if dialect.family == HARMONY:
        raise unsupported("messages", "an answer in channels cannot go on behind a last message of the assistant's")
    return last["content"]


@dataclass(frozen=True)
class ChatForm(OpenAIForm):
    """Answers as ``chat.completion`` and ``chat.completion.chunk`` objects."""

    event_kind = "chat.completion.chunk"
    count: int
    logprobs: bool

    def whole(self, answers: Sequence[Collected], counts: Counts) -> AnswerBody:
        choices = [
            ChatChoice(
                index,
                message=_message(answer.parts),
                logprobs=self._logprobs(answer.logprobs),
                finish_reason=_finish(answer.finish, called=answer.called),
            )
            for index, answer in enumerate(answers)
        ]
        return self.identity.body("chat.completion", choices, self.usage(counts))

    def usage(self, counts: Counts) -> Usage:
        return chat_usage(counts)

    def first(self) -> list[AnswerBody]:
        return [self.event(ChatChoice(index, delta=Delta("assistant", ""))) for index in range(self.count)]

    def next(self, piece: Piece) -> list[AnswerBody]:
        deltas = [delta for part in piece.parts for delta in _deltas(part)]
        if piece.logprobs and not deltas:
            deltas = [Delta(content="")]
        made = []
        for at, delta in enumerate(deltas):
            logprobs = self._logprobs(piece.logprobs if at == 0 else ())
            made.append(self.event(ChatChoice(piece.index, delta=delta, logprobs=logprobs)))
        if piece.finish is not None:
            finish = _finish(piece.finish, called=piece.called)
            made.append(self.event(ChatChoice(piece.index, delta=Delta(), finish_reason=finish)))
        return made

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self.logprobs:
            return None
        return ChatLogprobs(
            [_named(entry.text, entry.logprob, [_named(*other) for other in entry.top]) for entry in entries]
        )


def _finish(reason: str | None, *, called: bool) -> str | None:
    return "tool_calls" if called and reason == "stop" else reason


def _message(parts: Sequence[Part]) -> ChatMessage:
    """The whole answer. Its content is null where it is nothing but calls, as with OpenAI."""
    text = "".join(part.text for part in parts if isinstance(part, Text))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [
        ToolCall(CalledFunction(part.arguments, part.name), id=part.id or UNSET, type="function")
        for part in parts
        if isinstance(part, Call)
    ]
    return ChatMessage(
        "assistant", text or (None if calls else ""), reasoning_content=reasoning or UNSET, tool_calls=calls or UNSET
    )


def _deltas(part: Part) -> list[Delta]:
    match part:
        case Text(text):
            return [Delta(content=text)]
        case Reasoning(text):
            return [Delta(reasoning_content=text)]
        case CallPiece(name=""):
            return [Delta(tool_calls=[ToolCall(CalledFunction(part.arguments), part.index)])]
        case CallPiece():
            function = CalledFunction(part.arguments, part.name)
            return [Delta(tool_calls=[ToolCall(function, part.index, id=part.id or UNSET, type="function")])]
        case Call():
            function = CalledFunction("", part.name)
            named = ToolCall(function, part.index, id=part.id or UNSET, type="function")
            return [
                Delta(tool_calls=[named]),
                Delta(tool_calls=[ToolCall(CalledFunction(part.arguments), part.index)]),
            ]


def _named(text: str, logprob: float, top: list[ChatToken] | UnsetType = UNSET) -> ChatToken:
    return ChatToken(text, logprob, None if "\ufffd" in text else list(text.encode()), top)
