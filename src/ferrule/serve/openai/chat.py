"""``POST /v1/chat/completions``: from messages to a prompt, and from pieces to OpenAI's chat objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from ferrule.engine import ImagePrompt
from ferrule.errors import RequestError
from ferrule.serve.answer.form import Collected, Counts
from ferrule.serve.answer.prepared import RequestReader
from ferrule.serve.answer.prompt import check_answers, check_length, encode
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.sequences import Job, choices
from ferrule.serve.answer.service import Service
from ferrule.serve.answer.transcript import Piece, TokenLogprob
from ferrule.serve.images.layout import text_in
from ferrule.serve.images.shown import ShownImage
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
from ferrule.serve.tools.messages import Message, images_of, results_apart, template_messages
from ferrule.serve.tools.parts import Call, CallPiece, Part, Reasoning, Text
from ferrule.serve.tools.reading import ChatReading

PROMPT_END = 256
"""Characters at the end of a prompt by which is seen where an answer begins, and if its reasoning has been opened."""


@dataclass(frozen=True)
class PreparedChat:
    """A chat request, read: the sequences to generate, and how many tokens their prompt has."""

    jobs: tuple[Job, ...]
    prompt_tokens: int


async def prepare_chat(
    reader: RequestReader,
    asks: Callable[[], ChatRequest],
    *,
    pieces: bool = False,
    texts: Mapping[str, TextTool] = NO_TEXTS,
) -> PreparedChat:
    """The chat that ``asks`` gives, read. The other APIs' come here, too, told as OpenAI's. ``pieces``: the form takes
    `CallPiece`. ``texts``: those of its tools that take one text. Raises `RequestError` when it asks for something that
    cannot be done, and what ``asks`` raises; with images `ApiError` as `Service.admit` does."""
    jobs, chat = await reader.run(lambda: _read(reader.service, asks(), pieces, texts))
    if chat.images:
        with reader.service.admit(len(jobs)):  # nothing is decoded for a request that would be refused then
            seen = await reader.see(chat.text, chat.images)
        jobs = tuple(replace(job, prompt=seen.tokens, images=seen.images) for job in jobs)
    return PreparedChat(jobs, len(jobs[0].prompt))


def _read(
    service: Service, body: ChatRequest, pieces: bool, texts: Mapping[str, TextTool]
) -> tuple[tuple[Job, ...], ChatText]:
    """The sequences of ``body``, and its text. Where that shows images they lack the prompt."""
    refuse_unsupported(body)
    engine = service.engine
    check_answers(engine)
    params = sampling_params(body, engine.default_sampling, vocab_size=engine.vocab_size)
    wanted = asked(body, engine.tokenizer, service.dialect)
    chat = chat_text(service, body, wanted)
    end, template = chat.text[-PROMPT_END:], engine.tokenizer.chat_template or ""
    constrained = constrained_chat(service.grammars, body, wanted, service.dialect, template, end, texts=texts)
    if constrained.constraint is not None:
        params = replace(params, constraint=constrained.constraint)
    if body.prediction is not None and engine.health().speculation is not None:
        predicted = encode(engine, body.prediction.content, field="prediction", add_special_tokens=False)
        params = replace(params, predicted=predicted)
    prompt = () if chat.images else encode(engine, chat.text, field="messages", add_special_tokens=False)
    sure = constrained.sure
    reading = ChatReading(service.dialect, end, wanted.tools, wanted.parallel, own=sure, pieces=pieces and sure)
    jobs = tuple(
        Job(
            index,
            prompt,
            each,
            tuple(body.stop),
            continues=bool(body.continue_final_message),
            chat=reading,
            asked=body.turn,
        )
        for index, each in enumerate(choices(params, body.n or 1))
    )
    return jobs, chat


async def answer_chat(reader: RequestReader, body: ChatRequest, identity: Identity) -> Answer:
    """The answer to ``body``. Raises `RequestError` as `prepare_chat` does."""
    chat = await prepare_chat(reader, lambda: body, pieces=bool(body.stream))
    form = ChatForm(identity, body.wants_usage, len(chat.jobs), bool(body.logprobs))
    return Answer(reader.service, chat.jobs, form, prompt_tokens=chat.prompt_tokens, stream=bool(body.stream))


async def chat_tokens(
    reader: RequestReader, asks: Callable[[], ChatRequest], *, opened: bool = True, special: bool = False
) -> tuple[int, ...]:
    """Tokens of the prompt of the chat that ``asks`` gives. ``special``: with those that begin a text."""
    service = reader.service

    def read() -> ChatText | ImagePrompt:
        body = asks()
        chat = chat_text(service, body, asked(body, service.engine.tokenizer, service.dialect), opened=opened)
        if chat.images:
            return chat
        return ImagePrompt(encode(service.engine, chat.text, field="messages", add_special_tokens=special), ())

    made = await reader.run(read)
    if isinstance(made, ChatText):
        made = await reader.see(made.text, made.images, special=special)
    return made.tokens


@dataclass(frozen=True)
class ChatText:
    """A conversation as text, in which a mark of the model's stands for each of its images."""

    text: str
    images: tuple[ShownImage, ...]


def chat_text(service: Service, body: ChatRequest, wanted: Asked, *, opened: bool = True) -> ChatText:
    """The conversation, with the opening of the answer's turn if ``opened``, and what of it the request gives.

    Raises `RequestError` where the model's template refuses it, or it cannot be encoded: tools, arguments and options
    may spell halves of characters as JSON does; and for images that the model cannot see."""
    engine, dialect, layout = service.engine, service.dialect, service.layout
    images = images_of(body.messages)
    if images and layout is None:
        raise unsupported(images[0].where, "this model takes text only; leave images out, or say what they show")
    messages, begun = body.messages, ""
    if body.continue_final_message:
        messages, begun = messages[:-1], _begun(messages[-1], dialect)

    def render(told: Sequence[Message]) -> str:
        return engine.tokenizer.render_chat(
            template_messages(told, layout),
            tools=wanted.shown,
            options=wanted.options,
            add_generation_prompt=opened,
        )

    text = render(messages)
    if layout is not None and text.count(layout.marker) < len(images):
        text = render(results_apart(messages))
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
    if images:
        check_length(engine, text, "messages")
    return ChatText(text, images)


def _begun(last: Message, dialect: Dialect) -> str:
    """Text of the ``last`` message, with which the answer begins."""
    if last.role != "assistant" or last.tool_calls or last.function_call is not None:
        raise RequestError("continue_final_message: the last message is no text of the assistant's", param="messages")
    if dialect.family == HARMONY:
        raise unsupported("messages", "an answer in channels cannot go on behind a last message of the assistant's")
    return text_in(last.content)


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
