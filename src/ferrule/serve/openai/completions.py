"""``POST /v1/completions``: from prompts to sequences, and from pieces to OpenAI's text completion objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ferrule.engine import Engine, PromptToken
from ferrule.errors import RequestError
from ferrule.serve.answer.form import Collected, Counts
from ferrule.serve.answer.prompt import check_answers, encode, too_long
from ferrule.serve.answer.sending import Answer
from ferrule.serve.answer.sequences import Job, choices
from ferrule.serve.answer.service import Service
from ferrule.serve.answer.text import Vocabulary
from ferrule.serve.answer.transcript import Piece, TokenLogprob
from ferrule.serve.openai.echo import Echo, echo_logprobs
from ferrule.serve.openai.form import OpenAIForm
from ferrule.serve.openai.identity import Identity
from ferrule.serve.openai.infill import infill
from ferrule.serve.openai.objects import AnswerBody, TextChoice, TextLogprobs, Usage, usage
from ferrule.serve.openai.sampling import check_token, sampling_params
from ferrule.serve.openai.schemas import CompletionRequest, refuse_unsupported


def answer_completion(service: Service, body: CompletionRequest, identity: Identity) -> Answer:
    """The answer to ``body``. Raises `RequestError` when it asks for something that cannot be done."""
    refuse_unsupported(body)
    engine = service.engine
    check_answers(engine)
    params = sampling_params(body, engine.default_sampling, vocab_size=engine.vocab_size)
    params = service.grammars.constrained(body, params)
    prompts = [prompt_tokens(engine, prompt, special=not body.suffix) for prompt in body.prompt]
    if body.suffix:
        suffix = encode(engine, body.suffix, field="suffix", add_special_tokens=False)
        filled = [infill(engine.tokenizer, prompt, suffix) for prompt in prompts]
        prompts = [prompt for prompt, _ in filled]
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *filled[0][1]))
    asked = [(prompt, own) for prompt in prompts for own in choices(params, body.n or 1)]
    jobs = [
        Job(index, prompt, own, tuple(body.stop), continues=True, asked=body.turn)
        for index, (prompt, own) in enumerate(asked)
    ]
    texts = [prompt_text(engine, prompt) if body.echo else "" for prompt in body.prompt for _ in range(body.n or 1)]
    echoes = tuple(Echo(text, prompt if body.echo else ()) for text, (prompt, _) in zip(texts, asked, strict=True))
    vocabulary = None if body.logprobs is None else service.vocabulary
    form = CompletionForm(identity, body.wants_usage, echoes, vocabulary)
    total = sum(len(prompt) for prompt in prompts)
    return Answer(service, jobs, form, prompt_tokens=total, stream=bool(body.stream))


def prompt_tokens(engine: Engine, prompt: str | list[int], *, special: bool = True) -> tuple[int, ...]:
    """The prompt's token ids, checked; ``special``: with those that begin a text. Raises `RequestError` for unknown
    ones and when there are none."""
    if isinstance(prompt, str):
        tokens = encode(engine, prompt, field="prompt", add_special_tokens=special)
        if not special:
            return tokens
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
    """Answers as ``text_completion`` objects. ``echoes``: what each answer begins with, its text may be empty.
    ``vocabulary``: where log-probabilities are wanted."""

    event_kind = "text_completion"
    echoes: tuple[Echo, ...]
    vocabulary: Vocabulary | None

    def whole(self, answers: Sequence[Collected], counts: Counts) -> AnswerBody:
        choices = [
            TextChoice(
                index,
                self.echoes[index].text + answer.text,
                self._logprobs(index, answer.logprobs, answer.prompt),
                answer.finish,
            )
            for index, answer in enumerate(answers)
        ]
        return self.identity.body("text_completion", choices, self.usage(counts))

    def usage(self, counts: Counts) -> Usage:
        return usage(counts)

    def first(self) -> list[AnswerBody]:
        if self.vocabulary is not None:  # a prompt is sent with its log-probabilities, which come with a piece
            return []
        return [self.event(TextChoice(at, echo.text, None, None)) for at, echo in enumerate(self.echoes) if echo.text]

    def next(self, piece: Piece) -> list[AnswerBody]:
        echo = "" if piece.prompt is None else self.echoes[piece.index].text
        logprobs = self._logprobs(piece.index, piece.logprobs, piece.prompt)
        return [self.event(TextChoice(piece.index, echo + piece.text, logprobs, piece.finish))]

    def _logprobs(
        self, index: int, entries: Sequence[TokenLogprob], prompt: Sequence[PromptToken] | None
    ) -> TextLogprobs | None:
        if self.vocabulary is None:
            return None
        echo = self.echoes[index]
        made = TextLogprobs(
            [entry.text for entry in entries],
            [entry.logprob for entry in entries],
            [_top(entry) for entry in entries],
            [entry.offset + len(echo.text) for entry in entries],
        )
        return made if not echo.tokens or prompt is None else echo_logprobs(self.vocabulary, echo, prompt) + made


def _top(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives by their text, the chosen one among them. Of several with one text the likeliest counts."""
    top: dict[str, float] = {}
    for text, logprob in (*entry.top, (entry.text, entry.logprob)):
        top.setdefault(text, logprob)
    return top
