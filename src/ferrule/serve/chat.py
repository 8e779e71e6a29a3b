"""``POST /v1/chat/completions``: from messages to a prompt, and from pieces to OpenAI's chat objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from ferrule.serve.answer import Answer, Collected, Form, Service
from ferrule.serve.identity import Identity
from ferrule.serve.objects import AnswerBody, ChatChoice, ChatLogprobs, ChatMessage, ChatToken, Delta, Usage
from ferrule.serve.prompt import chat_prompt
from ferrule.serve.sampling import sampling_params
from ferrule.serve.schemas import ChatRequest, refuse_unsupported
from ferrule.serve.sequences import Job, choices
from ferrule.serve.transcript import Piece, TokenLogprob


def answer_chat(service: Service, body: ChatRequest, identity: Identity) -> Answer:
    """The answer to ``body``. Raises `RequestError` when it asks for something that cannot be done."""
    refuse_unsupported(body)
    engine = service.engine
    params = sampling_params(body, engine.default_sampling, vocab_size=engine.vocab_size)
    params = service.grammars.constrained(body, params)
    prompt = chat_prompt(engine, body.messages)
    jobs = [Job(index, prompt, own, tuple(body.stop)) for index, own in enumerate(choices(params, body.n or 1))]
    form = ChatForm(identity, body.wants_usage, len(jobs), bool(body.logprobs))
    return Answer(service, jobs, form, prompt_tokens=len(prompt), stream=bool(body.stream))


@dataclass(frozen=True)
class ChatForm(Form):
    """Answers as ``chat.completion`` and ``chat.completion.chunk`` objects."""

    event_kind = "chat.completion.chunk"
    count: int
    logprobs: bool

    def whole(self, answers: Sequence[Collected], usage: Usage) -> AnswerBody:
        choices = [
            ChatChoice(
                index,
                message=ChatMessage("assistant", answer.text),
                logprobs=self._logprobs(answer.logprobs),
                finish_reason=answer.finish,
            )
            for index, answer in enumerate(answers)
        ]
        return self.identity.body("chat.completion", choices, usage)

    def opening(self) -> list[AnswerBody]:
        return [self.event(ChatChoice(index, delta=Delta("assistant", ""))) for index in range(self.count)]

    def events(self, piece: Piece) -> list[AnswerBody]:
        made = []
        if piece.text or piece.logprobs:
            delta, logprobs = Delta(content=piece.text), self._logprobs(piece.logprobs)
            made.append(self.event(ChatChoice(piece.index, delta=delta, logprobs=logprobs)))
        if piece.finish is not None:
            made.append(self.event(ChatChoice(piece.index, delta=Delta(), finish_reason=piece.finish)))
        return made

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self.logprobs:
            return None
        return ChatLogprobs(
            [_named(entry.text, entry.logprob, [_named(*other) for other in entry.top]) for entry in entries]
        )


def _named(text: str, logprob: float, top: list[ChatToken] | UnsetType = UNSET) -> ChatToken:
    return ChatToken(text, logprob, None if "\ufffd" in text else list(text.encode()), top)
