"""Types between the engine and its callers: the HTTP server, the command line, a benchmark."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, Protocol, TypedDict

from ferrule.engine.turn import FIRST_COME, Turn
from ferrule.errors import RequestError
from ferrule.model import Embedding, ModelSpec, PoolingMode
from ferrule.plan import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ferrule.engine.abilities import Abilities

    Vector = NDArray[np.float32]

FinishReason = Literal["stop", "length"]
State = Literal["loading", "ready", "recovering", "waiting", "failed", "closed"]
"""``recovering``: a rank was lost, and the ranks are being started again. ``waiting``: the model cannot be held now; it
comes back by itself when it can be. ``failed``: it does not come back."""

VECTORS_ONLY = "this model makes vectors (/v1/embeddings, /api/embed), and has no output layer to answer with"
"""Answer to who asks it for more."""


@dataclass(frozen=True)
class Constraint:
    """Grammar that an answer must follow. ``text``: a JSON schema, a regular expression (of the whole answer), a
    context-free grammar in llguidance's variant of Lark's notation, or several of these as that library's own JSON,
    the first of which refers to the others."""

    kind: Literal["json_schema", "regex", "lark", "grammars"]
    text: str


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one sequence.

    ``max_tokens``: None means as many as the context holds. ``temperature`` 0 means greedy. ``top_k`` 0 and
    ``min_p`` 0 mean off. ``logprobs``: how many alternatives to report beside the chosen token's own
    log-probability; None means no log-probabilities at all, 0 the chosen token's only. They are those of the
    model's own distribution, before temperature and cuts; under a ``constraint``, of what that allows.
    ``prompt_logprobs``: the same of the prompt's tokens, of which the first has none.
    ``stop_token_ids`` are added to the model's own end tokens; ``ignore_eos`` disables the model's end tokens (but not
    ``stop_token_ids``, and not under a ``constraint``, whose end they are). ``adapter``: the name of the LoRA adapter
    that computes with the model; None: the model alone. ``turn``: among other sequences. ``predicted``: tokens of a
    text that the answer may have, from which speculation guesses, too; they change nothing else. Raises `RequestError`
    for numbers with which no token can be chosen.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    constraint: Constraint | None = None
    adapter: str | None = None
    turn: Turn = FIRST_COME
    predicted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, math.inf),
            ("presence_penalty", -math.inf, math.inf),
            ("frequency_penalty", -math.inf, math.inf),
            ("top_p", 0.0, 1.0),
            ("top_k", 0, math.inf),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, math.inf),
        ):
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)) or (name == "repetition_penalty" and value == 0):
                raise RequestError(f"{name} cannot be {value}", param=name)


class PromptToken(NamedTuple):
    """Log-probability of a prompt's token after those before it, its rank (1: none was
    likelier), and the likeliest ones with theirs."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Token:
    """One generated token. ``finish`` is set on the last one of a sequence; ``prompt`` on the first one, where
    `SamplingParams.prompt_logprobs` asks for it: the prompt's tokens but the first. ``cached``: on the first one, how
    many of the prompt's tokens were computed for earlier requests. ``guessed``: by speculation, before it was computed;
    ``wrong``: how many guesses for it and the tokens after it were dropped.

    A sequence that ends because the model said its end token still yields that token (with ``finish="stop"``);
    the caller that turns tokens into text leaves it out.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: FinishReason | None = None
    prompt: tuple[PromptToken, ...] | None = None
    cached: int | None = None
    guessed: bool = False
    wrong: int = 0


@dataclass(frozen=True)
class Feature:
    """Tensor of an image's features. ``dtype``: torch's name of it. ``data``: its numbers, row by row, in the machine's
    order of bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class ImageInput:
    """One image of a prompt, as the model's processor made it.

    ``begin``: where its placeholders begin in the prompt; ``tokens``: how many of the prompt's tokens it covers.
    ``features``: the processor's tensors (``pixel_values``, ``image_grid_thw`` ...).
    """

    begin: int
    tokens: int
    features: Mapping[str, Feature]


@dataclass(frozen=True)
class ImagePrompt:
    """Prompt with a placeholder for each of the tokens that ``images`` cover."""

    tokens: tuple[int, ...]
    images: tuple[ImageInput, ...]


@dataclass(frozen=True)
class Progress:
    """Progress of loading: ``rank`` has read ``done`` of ``total`` bytes (or is in a named ``phase``). ``replica``: its
    number, from 1, where there are several."""

    rank: int
    phase: str
    done: int = 0
    total: int = 0
    replica: int = 0

    @property
    def who(self) -> str:
        """The rank, for people."""
        return (f"replica {self.replica}, " if self.replica else "") + f"rank {self.rank}"


@dataclass(frozen=True)
class RankInfo:
    """Report of one rank when it was ready. Sizes in bytes.

    ``base_bytes`` is the process's private memory before any weight was loaded, ``peak_bytes`` the highest since.
    ``received_bytes`` of the model came from other hosts, for all ranks of this one. ``unshared``: why there is no
    prefix cache although it was not switched off; ``unguessed``: no speculation although it was asked for.
    ``streamed``: which weights are read from disk with every token, for people; None: none.
    """

    rank: int
    pid: int
    host: str
    device: str
    weight_bytes: int
    base_bytes: int
    peak_bytes: int
    transports: str
    received_bytes: int = 0
    unshared: str | None = None
    unguessed: str | None = None
    streamed: str | None = None


@dataclass(frozen=True)
class Recovery:
    """Recovery of a model, done or about to be. ``at``: when it was lost, in seconds since 1970; ``seconds`` until it
    was back and ``requests`` that then went on: None before. ``kept``: the ranks that kept what they had loaded."""

    cause: str
    at: float
    seconds: float | None = None
    requests: int | None = None
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplicaHealth:
    """One of several whole copies of a model. ``hosts`` and ``devices``: of its ranks."""

    state: State
    error: str | None = None
    running: int = 0
    waiting: int = 0
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrefixUse:
    """Use of the prefix cache. ``tokens``: that it holds in memory, ``stored``: and on disk; ``hits``: tokens of
    prompts that were not computed, since the ranks were started."""

    tokens: int = 0
    stored: int = 0
    hits: int = 0


@dataclass(frozen=True)
class SpeculationUse:
    """Use of speculative decoding: tokens that were guessed and computed (``drafted``), and those of them that became
    part of an answer (``accepted``)."""

    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class StreamUse:
    """Use of weights that the driver's rank reads from its disk: ``stored`` there, of which ``each_step`` reads some;
    ``read`` since it was started, and seconds that steps ``waited`` for that. ``hits``: of experts that tokens chose,
    how many were in memory then, and ``misses``, which were not. Bytes, but for these."""

    stored: int = 0
    each_step: int = 0
    read: int = 0
    waited: float = 0.0
    hits: int = 0
    misses: int = 0
    hit_rate: float | None = None


@dataclass(frozen=True)
class HandOverUse:
    """Use of ranks that compute prompts for others. ``state`` and ``error``: theirs; ``joined``: whether they can hand
    something over. ``prompts`` came whole, ``tokens`` of all; of ``failed`` ones the ranks for answers computed the
    rest. By the first rank for prompts: ``size`` bytes sent in ``seconds``, ``behind`` of them after the last layer."""

    state: State
    error: str | None = None
    joined: bool = False
    prompts: int = 0
    tokens: int = 0
    failed: int = 0
    size: int = 0
    seconds: float = 0.0
    behind: float = 0.0


@dataclass(frozen=True)
class Health:
    """``error``: why the model is not ready. ``since``: when this state began, in seconds since 1970. ``recoveries``:
    how often it has come back. ``note``: what people should know although it runs, such as a device that is lost.
    ``prefix``: None where there is no prefix cache; ``speculation``: where nothing is guessed; ``streamed``: where all
    weights are in memory. ``replicas``: its copies, where there are to be several; the model is ready as long as one
    is. ``hand_over``: None where all ranks compute prompts."""

    state: State
    error: str | None = None
    running: int = 0
    waiting: int = 0
    since: float = 0.0
    recoveries: int = 0
    last_recovery: Recovery | None = None
    note: str | None = None
    prefix: PrefixUse | None = None
    speculation: SpeculationUse | None = None
    streamed: StreamUse | None = None
    replicas: tuple[ReplicaHealth, ...] = ()
    hand_over: HandOverUse | None = None


class ChatMessage(TypedDict):
    """Message of one side of a conversation, as chat templates take it."""

    role: str
    content: str | list[dict[str, Any]]
    """A list of parts, ``{"type": "text", "text": …}`` and ``{"type": "image"}``, only where there are images."""
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    """As OpenAI writes them, but with the arguments as an object."""
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that serving needs. ``warning``: what is wrong with its chat template.
    ``chat_template``: its source; ``template_names``: the variables that it reads, such as ``tools``.
    ``response_template``: what transformers calls so, which says how answers are to be read."""

    eos_token_id: int | None
    chat_template: str | None
    response_template: Mapping[str, Any] | None
    template_names: frozenset[str]
    has_chat_template: bool
    warning: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def to_json(self) -> str | None:
        """As ``tokenizer.json`` would have it; None where it cannot be told so."""
        ...

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation by the model's template; it has the special tokens already. ``add_generation_prompt``: with
        the opening of the assistant's turn. ``options``: further variables of the template, such as
        ``enable_thinking``."""
        ...


class Engine(Protocol):
    """A model that runs, on however many ranks. Everything here is called from one asyncio event loop."""

    name: str
    """The model's name, as `/v1/models` shows it."""
    created: int
    """Time at which the model was loaded, in seconds since 1970."""
    max_context: int
    """The most tokens that prompt and answer may have together."""
    vocab_size: int
    embedding: Embedding
    """As what its vectors are made."""
    default_sampling: SamplingParams
    """Sampling defaults of the model's generation_config; used for fields that a request leaves out."""
    plan: Plan
    ranks: tuple[RankInfo, ...]
    adapters: tuple[str, ...]
    """Names of the LoRA adapters that `SamplingParams.adapter` may say."""
    image_marker: str | None
    """Text that stands for an image in a rendered prompt; None: the model takes text only."""
    abilities: Abilities
    """What of a request it honours; `generate` and `embed` raise `RequestError` for more."""

    @property
    def spec(self) -> ModelSpec:
        """Counts and sizes of the model, as it is stored."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def read_images(self, text: str, images: Sequence[bytes], *, add_special_tokens: bool = False) -> ImagePrompt:
        """The prompt of a rendered ``text``, in which an `image_marker` stands for each of ``images``, in their order:
        files of PNG, JPEG, WebP or GIF (whose first frame counts). Raises `RequestError` where their number differs
        from that of the markers, where one cannot be read or is too large, where the prompt has no room in the context,
        and for a model that takes text only; ``param`` is ``images.N`` where it is the fault of one, from 0."""
        ...

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, images: Sequence[ImageInput] = ()
    ) -> AsyncGenerator[Token, None]:
        """Yield tokens as they are made. Closing the iterator early cancels the sequence on every rank. ``images``: of
        the ``prompt``, as `read_images` gave both.

        When a rank is lost there is a pause, and the answer goes on. Raises `RequestError` before the first token when
        the prompt leaves no room (``code="context_length_exceeded"``), and at any point for a request that crashes the
        ranks again and again; `ModelUnavailable` when the model cannot be had in time; `EngineError` when it failed.
        """
        ...

    async def embed(
        self, prompts: Sequence[Sequence[int]], pooling: PoolingMode | None = None, *, turn: Turn = FIRST_COME
    ) -> list[Vector]:
        """A vector for each of ``prompts``: its hidden states after the last norm, pooled, in float32; of length 1
        where the model's files say so. ``pooling``: the model's own by default. All are computed at once; cancelling
        ends them on every rank. Raises as `generate` does."""
        ...

    def health(self) -> Health: ...

    async def drain(self, seconds: float) -> bool:
        """Take no more requests (`ModelUnavailable`), and wait until those that are open have ended, so many seconds
        at most. Whether they have."""
        ...

    async def close(self) -> None:
        """Stop every rank. Safe to call twice; returns within about a second."""
        ...


ProgressCallback = Callable[[Progress], None]
