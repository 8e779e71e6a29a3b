"""``POST /v1/completions``: from prompts to sequences, and from pieces to OpenAI's text completion objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.engine import Engine
from ferrule.errors import RequestError
from ferrule.serve.answer.form import Collected, Counts
from ferrule.serve.answer.prompt import encode, too_long
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.sequences import Job, choices
from ferrule.serve.answer.service import Service
from ferrule.serve.answer.transcript import Piece, TokenLogprob
from ferrule.serve.openai.form import OpenAIForm
from ferrule.serve.openai.identity import Identity
from ferrule.serve.openai.objects import AnswerBody, TextChoice, TextLogprobs, Usage, usage
from ferrule.serve.openai.sampling import check_token, sampling_params
from ferrule.serve.openai.schemas import CompletionRequest, refuse_unsupported


def answer_completion(service: Service, body: CompletionRequest, identity: Identity) -> Answer:
    """The answer to ``body``. Raises `RequestError` when it asks for something that cannot be done."""
    refuse_unsupported(body)
    engine = service.engine
    params = sampling_params(body, engine.default_sampling, vocab_size=engine.vocab_size)
    params = service.grammars.constrained(body, params)
    prompts = [prompt_tokens(engine, prompt) for prompt in body.prompt]
    asked = [(prompt, own) for prompt in prompts for own in choices(params, body.n or 1)]
    jobs = [Job(index, prompt, own, tuple(body.stop), continues=True) for index, (prompt, own) in enumerate(asked)]
    echoes = [prompt_text(engine, prompt) for prompt in body.prompt for _ in range(body.n or 1)] if body.echo else []
    form = CompletionForm(identity, body.wants_usage, tuple(echoes or [""] * len(jobs)), body.logprobs is not None)
    total = sum(len(prompt) for prompt in prompts)
    return Answer(service, jobs, form, prompt_tokens=total, stream=bool(body.stream))


def prompt_tokens(engine: Engine, prompt: str | list[int]) -> tuple[int, ...]:
    """The prompt's token ids, checked. Raises `RequestError` for unknown ones and when there are none."""
    if isinstance(prompt, str):
        tokens = encode(engine, prompt, field="prompt")
    else:
        if len(prompt) >= engine.max_context:
            raise too_long(engine, f"{len(prompt)} tokens,", "prompt")
        tokens = tuple(prompt)
        for token in tokens:
            check_token(token, engine.vocab_size, "prompt")
    if not tokens:
        raise RequestError("prompt: it is empty, and a model continues only what has begun", param="prompt")
    return tokens


def prompt_text(engine: Engine, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt)


@dataclass(frozen=True)
class CompletionForm(OpenAIForm):
    """Answers as ``text_completion`` objects. ``echoes``: what each answer begins with, the prompt or nothing."""

    event_kind = "text_completion"
    echoes: tuple[str, ...]
    logprobs: bool

    def whole(self, answers: Sequence[Collected], counts: Counts) -> AnswerBody:
        choices = [
            self._choice(index, self.echoes[index] + answer.text, answer.logprobs, answer.finish)
            for index, answer in enumerate(answers)
        ]
        return self.identity.body("text_completion", choices, self.usage(counts))

    def usage(self, counts: Counts) -> Usage:
        return usage(counts)

    def first(self) -> list[AnswerBody]:
        return [self.event(self._choice(index, echo, (), None)) for index, echo in enumerate(self.echoes) if echo]

    def next(self, piece: Piece) -> list[AnswerBody]:
        return [self.event(self._choice(piece.index, piece.text, piece.logprobs, piece.finish))]

    def _choice(self, index: int, text: str, entries: Sequence[TokenLogprob], finish: str | None) -> TextChoice:
        return TextChoice(index, text, _logprobs(entries) if self.logprobs else None, finish)


def _logprobs(entries: Sequence[TokenLogprob]) -> TextLogprobs:
    return TextLogprobs(
        [entry.text for entry in entries],
        [entry.logprob for entry in entries],
        [_top(entry) for entry in entries],
        [entry.offset for entry in entries],
    )


def _top(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives by their text, the chosen one among them. Of several with one text the likeliest counts."""
    top: dict[str, float] = {}
    for text, logprob in (*entry.top, (entry.text, entry.logprob)):
        top.setdefault(text, logprob)
    return top
