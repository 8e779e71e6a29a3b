"""Options of an engine, as the user gives them, and those passed to each rank."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from ferrule.engine.device_names import CPU, parse_device, parse_devices
from ferrule.engine.inter_token import AUTO, parse_inter_token_limit
from ferrule.engine.speculation import parse_speculation
from ferrule.errors import ConfigError
from ferrule.model import CACHE_BITS, ModelSpec
from ferrule.plan import BLOCK_PAGES, Plan, make_plan

STEP_TIMEOUT = 600.0
"""Seconds that a rank waits for another within a step, or for the driver's next word; longer than any step takes."""
LOAD_TIMEOUT = 3600.0
"""Seconds that ranks wait for the slowest one to load."""

MEET_TIMEOUT = 120.0
"""Seconds in which all ranks must have found each other, once all have done their imports."""
RETURN_TIMEOUT = 20.0
"""The same where ranks start again on machines that have done it before: one that is not there by then will not come.
After each start that failed it is doubled, up to `MEET_TIMEOUT`."""
KEPT_SECONDS = 300.0
"""Seconds that a rank which has lost others keeps what it has loaded, and waits to be told to meet them anew."""

PROMPTS, ANSWERS = "prompts", "answers"
"""Of ``hands_over``."""
AS_NEEDED = 0
"""Of ``stream_weights``: as much as does not fit."""

MOST_CONTEXT_RANKS = 16
"""Of ``context_parallel``."""

WEIGHTS = ("int8", "int4")
"""Formats to which plain weights can be quantised while they are loaded."""
KV_CACHES = tuple(CACHE_BITS)
DTYPE_NAMES = ("auto", "float32", "bfloat16", "float16")
_ADAPTER_NAME = re.compile(r"[\w.][\w.-]{0,99}")


@dataclass(frozen=True)
class Adapter:
    """``name``: by which requests choose it. ``path``: its directory, or a hub id. ``identity``: a digest of its files;
    empty before they were read."""

    name: str
    path: str
    identity: str = ""

    @property
    def text(self) -> str:
        """As `parse_adapters` takes it."""
        return f"{self.name}={self.path}"


@dataclass(frozen=True)
class Draft:
    """The model that guesses tokens for another one: ``directory``, ``identity`` and ``plan`` are as of `RankOptions`.
    The plan is of one rank. ``context``: the most tokens of a sequence that it takes. ``mtp``: it is the other one's
    own layer for multi-token prediction (`ferrule.model.mtp`)."""

    directory: str
    identity: str
    plan: Plan
    context: int
    mtp: bool = False


def parse_adapters(given: Iterable[str]) -> tuple[Adapter, ...]:
    """Of texts ``NAME=PATH``. Raises `ConfigError`."""
    found: dict[str, Adapter] = {}
    for text in given:
        name, _, path = text.partition("=")
        if not _ADAPTER_NAME.fullmatch(name) or not path:
            raise ConfigError(
                f"--adapter {text!r} is not of the form NAME=PATH, with a name of letters, digits, '.', '_' and '-'"
            )
        if name in found:
            raise ConfigError(f"--adapter {name!r} is given twice; each adapter needs a name of its own")
        here = Path(path).expanduser()
        found[name] = Adapter(name, str(here.absolute()) if here.exists() else path)
    return tuple(found.values())


def parse_shares(text: str) -> tuple[float, ...]:
    """Of ``--shares``, such as ``4,2,1``. Raises `ConfigError`."""
    try:
        shares = tuple(float(each) for each in text.split(","))
    except ValueError:
        shares = (0.0,)
    if any(not 0 < each < math.inf for each in shares):
        raise ConfigError(f"--shares {text!r} is no list of numbers above 0, one for each rank of --tp, such as 4,2,1")
    return shares


def check_blocks(ranks: int, prefix_disk: int) -> None:
    """Raises `ConfigError` where blocks of the prefix cache are to be kept in so many bytes of disk, and ``ranks`` that
    share out keys and values by pages have not all as many of each."""
    if prefix_disk and BLOCK_PAGES % ranks:
        raise ConfigError(
            f"--prefix-cache-disk keeps blocks of {BLOCK_PAGES} pages, which {ranks} ranks cannot share out alike: "
            "leave it out, or use --cp 2 or --cp 4"
        )


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options of an engine that each rank gets as they are. ``self_test``: compare a split model with its reference
    before it is ready. ``device``: for `device_names.parse_devices`. ``encrypt``: what ranks say over cables; None: as
    ``FERRULE_ENCRYPT`` says on each host. ``weights``: a name of `WEIGHTS`, or None: as they are stored. ``graphs``:
    capture steps where the device can. ``copies``: of the model in the memory of this machine, which share its cores
    and what is left for caches; ``copies_left``: those that are still to be loaded after this one. ``prefix_cache``:
    what was computed of a prompt is kept for those that begin alike: of sequences that have ended at most
    ``prefix_tokens`` (None: as many as the caches have room for), and, where ``prefix_disk`` is not 0, in so many bytes
    of each rank's disk. ``inter_token_limit``: as `inter_token.parse_inter_token_limit` takes it. ``kv_cache``: of
    `KV_CACHES`, in what keys and values are kept; ``auto``: in what the model computes in. ``stream_weights``: weights
    of layers may stay on each rank's disk, from where steps read them, so that those in memory take so many bytes;
    `AS_NEEDED`: if they do not fit, so much as leaves room for caches; None: never. ``hands_over``: whether
    the ranks compute `PROMPTS` for those of another engine, or `ANSWERS` to prompts that those compute; empty: both by
    themselves."""

    self_test: bool = True
    device: str = CPU
    encrypt: bool | None = None
    weights: str | None = None
    graphs: bool = True
    copies: int = 1
    copies_left: int = 0
    prefix_cache: bool = True
    prefix_tokens: int | None = None
    prefix_disk: int = 0
    inter_token_limit: str = AUTO
    kv_cache: str = "auto"
    stream_weights: int | None = None
    hands_over: str = ""

    def shared(self) -> dict[str, Any]:
        """These options by their names."""
        return {each.name: getattr(self, each.name) for each in fields(SharedOptions)}


@dataclass(frozen=True)
class EngineOptions(SharedOptions):
    """``model``: a local directory in Hugging Face's layout, a hub id, or ``demo``. ``tensor`` and ``pipeline``: into
    how many parts each layer and the stack of layers is cut; ``shares``: how large those of a layer are to each other
    (none: equal); ``expert_parallel``: routed experts are given out whole, and ``expert_exchange``: tokens are sent to
    them, instead of all to every rank. ``max_context``: tokens of prompt and answer
    together; None means what the model was made for. ``name``: what the API calls the model. ``threads``: CPU threads
    per rank; None shares the machine's cores out. ``max_sequences``: how many sequences run at once. ``batch_tokens``:
    the most tokens computed in one step. ``standby``: keep processes ready that take over when ranks die.
    ``adapters``: LoRA adapters that requests may name. ``speculate``: whether tokens of answers are guessed and
    computed together, for `speculation.parse_speculation`. ``context_parallel``: ranks of each stage that hold its
    layers whole and share out keys and values by pages, so that sequences may be as many times longer."""

    model: str
    tensor: int = 1
    pipeline: int = 1
    dtype: str = "auto"
    max_context: int | None = None
    name: str | None = None
    threads: int | None = None
    max_sequences: int = 64
    batch_tokens: int = 512
    standby: bool = False
    adapters: tuple[Adapter, ...] = ()
    speculate: str = "off"
    expert_parallel: bool = False
    expert_exchange: bool = False
    shares: tuple[float, ...] = ()
    context_parallel: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_NAMES:
            raise ConfigError(f"--dtype {self.dtype!r} is not one of {', '.join(DTYPE_NAMES)}")
        if self.weights is not None and self.weights not in WEIGHTS:
            raise ConfigError(f"--weights {self.weights!r} is not one of {', '.join(WEIGHTS)}")
        if self.kv_cache not in KV_CACHES:
            raise ConfigError(f"--kv-cache {self.kv_cache!r} is not one of {', '.join(KV_CACHES)}")
        parse_devices(self.device)
        parse_inter_token_limit(self.inter_token_limit)
        parse_speculation(self.speculate)
        if self.whole_experts and self.tensor == 1:
            flag = "--expert-exchange" if self.expert_exchange else "--expert-parallel"
            raise ConfigError(f"{flag} gives experts to the ranks of --tp, of which there must be 2 or more")
        if self.shares and len(self.shares) != self.tensor:
            raise ConfigError(
                f"--shares has {len(self.shares)} numbers, and --tp {self.tensor} needs one for each rank"
            )
        for flag, value in (
            ("--tp", self.tensor),
            ("--pp", self.pipeline),
            ("--cp", self.context_parallel),
            ("--max-context", self.max_context),
            ("--threads", self.threads),
            ("max_sequences", self.max_sequences),
            ("batch_tokens", self.batch_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{flag} must be at least 1, not {value}")
        if self.stream_weights is not None and self.stream_weights < AS_NEEDED:
            raise ConfigError(f"--stream-weights must be a size, not {self.stream_weights}")
        if self.prefix_disk and not self.prefix_cache:
            raise ConfigError("--prefix-cache-disk is of no use with --no-prefix-cache; leave one of them out")
        if self.context_parallel > 1:
            self._check_context_parallel(self.context_parallel)

    def _check_context_parallel(self, ranks: int) -> None:
        """Raises `ConfigError` for what is not done with ranks that share out keys and values by pages."""
        if self.tensor > 1:
            raise ConfigError(f"--cp {ranks} needs each rank to hold its layers whole: leave --tp, --shares out")
        if ranks > MOST_CONTEXT_RANKS:
            raise ConfigError(f"--cp {ranks} is more than the {MOST_CONTEXT_RANKS} ranks that share keys and values")
        if any(parse_device(name)[0] != CPU for name in parse_devices(self.device)):
            raise ConfigError(
                f"--cp {ranks} is done by native step programs, on processors: leave --device {self.device} out"
            )
        check_blocks(ranks, self.prefix_disk)

    @property
    def ranks(self) -> int:
        """Ranks of the split that the user asked for."""
        return self.tensor * self.pipeline * self.context_parallel

    def plan(self, model: ModelSpec) -> Plan:
        """The split that the user asked for. Raises `PlanError`."""
        return make_plan(
            model,
            tensor=self.tensor,
            pipeline=self.pipeline,
            context=self.context_parallel,
            experts=self.whole_experts,
            exchange=self.expert_exchange,
            speeds=self.shares,
        )

    @property
    def whole_experts(self) -> bool:
        """Whether routed experts are given out whole."""
        return self.expert_parallel or self.expert_exchange


@dataclass(frozen=True)
class RankOptions(SharedOptions):
    """Options of one rank; handed to its process as JSON. ``end_tokens``: ids that end an answer. ``identity``: which
    model is meant (`shards.weight_files`); where it is empty, whatever ``directory`` holds. ``meet_seconds``: in which
    all ranks must have found each other. ``adapters``: with their directories and identities. ``speculate``: tokens of
    a sequence that are guessed at once, at most; by the model ``draft``, or where that is None by n-grams. ``mtp``: of
    the model, only its layer for multi-token prediction is run."""

    directory: str
    dtype: str
    plan: Plan
    threads: int
    context: int
    max_sequences: int
    batch_tokens: int
    end_tokens: tuple[int, ...]
    identity: str = ""
    meet_seconds: float = MEET_TIMEOUT
    adapters: tuple[Adapter, ...] = ()
    speculate: int = 0
    draft: Draft | None = None
    mtp: bool = False

    @property
    def gives_hidden(self) -> bool:
        """Whether the driver reads the hidden states of tokens that were computed: to guess from them."""
        return self.mtp or (self.draft is not None and self.draft.mtp)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> RankOptions:
        """Raises `ConfigError` where ``text`` is not what `to_json` made."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"a rank's options cannot be read: {error}") from None
