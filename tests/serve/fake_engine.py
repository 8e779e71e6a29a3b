"""A scripted engine and tiny tokenizers, for everything that stands above the engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from ferrule.engine import (
    Abilities,
    ChatMessage,
    Health,
    ImageInput,
    ImagePrompt,
    PromptToken,
    RankInfo,
    Recovery,
    SamplingParams,
    SpeculationUse,
    Token,
    Turn,
    normalized,
)
from ferrule.engine.abilities import BUILT_IN
from ferrule.engine.spec import read_spec
from ferrule.engine.turn import FIRST_COME
from ferrule.errors import EngineError, ModelUnavailable, RequestError
from ferrule.model import Embedding, ModelSpec, PoolingMode, Share, demo_path
from ferrule.plan import Plan, Stage

TEXT = "The quick brown fox jumps over the lazy dog. Grüße aus Köln, 你好 世界, naïve café 🙂 done."
END = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and loop.first %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = [END, "<|system|>", "<|user|>", "<|assistant|>"]


class TinyTokenizer:
    """The engine's tokenizer protocol over a `tokenizers` backend, with a chat template unless ``template`` is None."""

    def __init__(self, backend: Backend, template: str | None = TEMPLATE) -> None:
        self.backend = backend
        self._template = template
        self.has_chat_template = template is not None
        self.warning: str | None = None
        self.chat_template = template
        self.response_template: Mapping[str, Any] | None = None
        self.template_names = frozenset({"messages", *(("tools",) if template and "tools" in template else ())})
        self.eos_token_id: int | None = backend.token_to_id(END)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def to_json(self) -> str | None:
        return self.backend.to_str()

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        if self._template is None:
            raise RequestError("no chat template; use /v1/completions", param="messages", code="no_chat_template")
        template = ImmutableSandboxedEnvironment().from_string(self._template)
        try:
            own = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
            return template.render(**(options or {}), **own, raise_exception=raise_exception)
        except TemplateError as error:
            raise RequestError(f"the template refuses these messages: {error}", param="messages") from error


def byte_level(template: str | None = TEMPLATE, specials: Sequence[str] = ()) -> TinyTokenizer:
    """A byte-level BPE as GPT-2 and Llama 3 have it: characters may be cut into several tokens. ``specials``: further
    special tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(each, special=True) for each in (*SPECIALS, *specials)],
        show_progress=False,
    )
    backend.train_from_iterator([TEXT] * 4, trainer)
    return TinyTokenizer(backend, template)


def sentencepiece_like() -> TinyTokenizer:
    """A BPE as Llama 2 has it: spaces are part of the words, the first one is dropped, unknown characters are bytes."""
    words = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "▁the", "a", "b", "▁b", "é"]
    backend = Backend(
        models.BPE({word: at for at, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.add_special_tokens([AddedToken(each, special=True) for each in SPECIALS])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TinyTokenizer(backend)


@dataclass
class Call:
    """One sequence that the engine was asked for. ``made``: tokens so far; ``ended``: how it ended."""

    prompt: tuple[int, ...]
    params: SamplingParams
    made: int = 0
    ended: str | None = None
    images: tuple[ImageInput, ...] = ()


def tensor_plan(ranks: int = 2) -> Plan:
    names = tuple(f"rank-{rank}" for rank in range(ranks))
    return Plan((Stage(names, 0, 8, (Share.even(ranks),) * ranks),), reason="as asked")


@cache
def demo_spec() -> ModelSpec:
    return read_spec(demo_path())


@dataclass
class FakeEngine:
    """Says ``text`` to everything, one token each ``delay`` seconds.

    ``fail_after``: raise `EngineError` in every sequence after so many tokens. ``hold``: when set, tokens wait for it.
    ``away``: the model cannot be had now. ``cached``: tokens of each prompt that it says were not computed; of several
    sequences one after the other. ``guessing``: all tokens but the first were guessed, and two more.
    """

    text: str = TEXT
    delay: float = 0.0
    fail_after: int | None = None
    hold: asyncio.Event | None = None
    name: str = "acme/fake-1b"
    max_context: int = 512
    created: int = 1_700_000_000
    tokenizer: TinyTokenizer = field(default_factory=byte_level)
    default_sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.6, top_k=40))
    plan: Plan = field(default_factory=tensor_plan)
    ranks: tuple[RankInfo, ...] = ()
    spec: ModelSpec = field(default_factory=demo_spec)
    adapters: tuple[str, ...] = ()
    calls: list[Call] = field(default_factory=list)
    embedding: Embedding = field(default_factory=Embedding)
    embedded: list[list[tuple[int, ...]]] = field(default_factory=list)
    active: int = 0
    most_active: int = 0
    closed: bool = False
    error: str | None = None
    image_marker: str | None = None
    abilities: Abilities = BUILT_IN
    away: ModelUnavailable | None = None
    cached: tuple[int, ...] = (0,)
    guessing: bool = False

    def __post_init__(self) -> None:
        self.vocab_size = self.tokenizer.backend.get_vocab_size()
        if not self.ranks:
            self.ranks = tuple(
                RankInfo(rank, 4000 + rank, "here", "cpu", 1_000_000, 2_000_000, 5_000_000, "shm")
                for rank in range(self.plan.world_size)
            )

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        raise RequestError("this model takes text only, no images", code="unsupported")

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, images: Sequence[ImageInput] = ()
    ) -> AsyncIterator[Token]:
        call = Call(tuple(prompt), params, images=tuple(images))
        self.calls.append(call)
        if self.away is not None:
            raise self.away
        if len(prompt) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; the context holds {self.max_context}",
                code="context_length_exceeded",
            )
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            async for token in self._tokens(call):
                call.made += 1
                yield token
            call.ended = "finished"
        except EngineError:
            call.ended = "failed"
            raise
        finally:
            call.ended = call.ended or "cancelled"
            self.active -= 1

    async def _tokens(self, call: Call) -> AsyncIterator[Token]:
        params, number = call.params, len(self.calls) - 1
        room = self.max_context - len(call.prompt)
        limit = min(params.max_tokens or room, room)
        script = self.tokenizer.encode(self.text, add_special_tokens=False)
        end = self.tokenizer.eos_token_id
        assert end is not None
        while params.ignore_eos and len(script) < limit:
            script = [*script, end, *script]
        ended = not params.ignore_eos
        for at, token in enumerate([*script[:limit], *([end] if ended else [])][:limit]):
            await asyncio.sleep(self.delay)
            if self.hold is not None:
                await self.hold.wait()
            if self.fail_after is not None and at >= self.fail_after:
                self.error = "rank 1 (pid 4001) on here was lost: killed by signal 9"
                raise EngineError(self.error)
            if params.ignore_eos:
                finish = "length" if at + 1 == limit else None
            else:
                finish = "stop" if token == end or token in params.stop_token_ids else None
                finish = finish or ("length" if at + 1 == limit else None)
            made = self._token(token, params, finish, self._scores(call) if at == 0 else None)
            made = replace(made, guessed=self.guessing and at > 0, wrong=2 * (self.guessing and at == 0))
            yield replace(made, cached=self.cached[number % len(self.cached)]) if at == 0 else made
            if finish:
                return

    def _scores(self, call: Call) -> tuple[PromptToken, ...] | None:
        """Each token of a prompt is as likely as its number says, and so are the first ones of the vocabulary."""
        count = call.params.prompt_logprobs
        if count is None:
            return None
        top = tuple((other, -0.001 * other) for other in range(count))
        return tuple(PromptToken(-0.001 * token, token + 1, top) for token in call.prompt[1:])

    async def embed(
        self, prompts: Sequence[Sequence[int]], pooling: PoolingMode | None = None, *, turn: Turn = FIRST_COME
    ) -> list[Any]:
        """By token the next of four numbers, counted."""
        assert pooling is None
        self.embedded.append([tuple(prompt) for prompt in prompts])
        vectors = [np.bincount(np.array(prompt) % 4, minlength=4).astype(np.float32) for prompt in prompts]
        return [normalized(vector) for vector in vectors]

    def _token(
        self, token: int, params: SamplingParams, finish: Any, prompt: tuple[PromptToken, ...] | None = None
    ) -> Token:
        if params.logprobs is None:
            return Token(token, finish=finish, prompt=prompt)
        others = [(token + step) % self.vocab_size for step in range(params.logprobs)]
        top = tuple((other, math.log(0.5) - at) for at, other in enumerate(others))
        return Token(token, math.log(0.5), top, finish, prompt)

    def health(self) -> Health:
        if self.closed:
            return Health("closed")
        if self.error is not None:
            return Health("failed", self.error)
        if self.away is not None:
            return Health(
                "waiting", str(self.away), since=5.0, recoveries=1, last_recovery=Recovery("lost", 1.0, 2.5, 3)
            )
        return Health("ready", running=self.active, speculation=SpeculationUse() if self.guessing else None)

    async def close(self) -> None:
        self.closed = True
