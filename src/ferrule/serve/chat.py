"""``POST /v1/chat/completions``: from messages to a prompt, and from pieces to OpenAI's chat objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrule.serve.answer import Answer, Collected, Service
from ferrule.serve.identity import Identity
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
    prompt = chat_prompt(engine, body.messages)
    jobs = [Job(index, prompt, own, tuple(body.stop)) for index, own in enumerate(choices(params, body.n or 1))]
    form = ChatForm(identity, len(jobs), bool(body.logprobs), wants_usage(body))
    return Answer(service, jobs, form, prompt_tokens=len(prompt), stream=bool(body.stream))


def wants_usage(body: ChatRequest) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage


@dataclass(frozen=True)
class ChatForm:
    """Answers as ``chat.completion`` and ``chat.completion.chunk`` objects."""

    identity: Identity
    count: int
    logprobs: bool
    include_usage: bool

    def whole(self, answers: Sequence[Collected], usage: dict[str, int]) -> dict[str, Any]:
        listed = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.logprobs),
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
        return {**self.identity.head("chat.completion"), "choices": listed, "usage": usage}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.count)]

    def events(self, piece: Piece) -> list[dict[str, Any]]:
        made = []
        if piece.text or piece.logprobs:
            made.append(self._chunk(piece.index, {"content": piece.text}, self._logprobs(piece.logprobs)))
        if piece.finish is not None:
            made.append(self._chunk(piece.index, {}, finish=piece.finish))
        return made

    def closing(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self.identity.head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self.identity.head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = [
            {
                **_named(entry.text, entry.logprob),
                "top_logprobs": [_named(text, logprob) for text, logprob in entry.top],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


def _named(text: str, logprob: float) -> dict[str, Any]:
    """A token as OpenAI shows it. A part of a character has bytes that are not known here, so none are claimed."""
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
