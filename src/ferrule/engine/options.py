"""Options of an engine, as the user gives them, and those passed to each rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ferrule.engine.device_names import CPU, parse_devices
from ferrule.errors import ConfigError
from ferrule.plan import Plan

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

WEIGHTS = ("int8", "int4")
"""Formats to which plain weights can be quantised while they are loaded."""
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


@dataclass(frozen=True)
class EngineOptions:
    """``model``: a local directory in Hugging Face's layout, a hub id, or ``demo``. ``tensor`` and ``pipeline``: into
    how many parts each layer and the stack of layers is cut. ``max_context``: tokens of prompt and answer together;
    None means what the model was made for. ``name``: what the API calls the model. ``threads``: CPU threads per rank;
    None shares the machine's cores out. ``max_sequences``: how many sequences run at once. ``batch_tokens``: the most
    tokens computed in one step. ``self_test``: compare a split model with its reference before it is ready.
    ``standby``: keep processes ready that take over when ranks die. ``encrypt``: what ranks say over cables; None: as
    ``FERRULE_ENCRYPT`` says on each host. ``weights``: a name of `WEIGHTS`, or None: as they are stored.
    ``device``: for `device_names.parse_devices`. ``graphs``: capture steps where the device can. ``adapters``: LoRA
    adapters that requests may name. ``copies``: of the model in the memory of this machine, which share its cores and
    what is left for caches; ``copies_left``: those that are still to be loaded after this one. ``prefix_cache``: what
    was computed of a prompt is kept for those that begin alike: of sequences that have ended at most ``prefix_tokens``
    (None: as many as the caches have room for), and, where ``prefix_disk`` is not 0, in so many bytes of each rank's
    disk."""

    model: str
    tensor: int = 1
    pipeline: int = 1
    dtype: str = "auto"
    max_context: int | None = None
    name: str | None = None
    threads: int | None = None
    max_sequences: int = 64
    batch_tokens: int = 512
    self_test: bool = True
    standby: bool = False
    encrypt: bool | None = None
    weights: str | None = None
    device: str = CPU
    graphs: bool = True
    adapters: tuple[Adapter, ...] = ()
    copies: int = 1
    copies_left: int = 0
    prefix_cache: bool = True
    prefix_tokens: int | None = None
    prefix_disk: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_NAMES:
            raise ConfigError(f"--dtype {self.dtype!r} is not one of {', '.join(DTYPE_NAMES)}")
        if self.weights is not None and self.weights not in WEIGHTS:
            raise ConfigError(f"--weights {self.weights!r} is not one of {', '.join(WEIGHTS)}")
        parse_devices(self.device)
        for flag, value in (
            ("--tp", self.tensor),
            ("--pp", self.pipeline),
            ("--max-context", self.max_context),
            ("--threads", self.threads),
            ("max_sequences", self.max_sequences),
            ("batch_tokens", self.batch_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{flag} must be at least 1, not {value}")
        if self.prefix_disk and not self.prefix_cache:
            raise ConfigError("--prefix-cache-disk is of no use with --no-prefix-cache; leave one of them out")


@dataclass(frozen=True)
class RankOptions:
    """Options of one rank; handed to its process as JSON. ``end_tokens``: ids that end an answer. ``identity``: which
    model is meant (`shards.weight_files`); where it is empty, whatever ``directory`` holds. ``meet_seconds``: in which
    all ranks must have found each other. ``device``: names as in `EngineOptions`. ``encrypt``, ``weights``, ``graphs``,
    ``copies``, ``copies_left`` and ``prefix_…``: as in `EngineOptions`. ``adapters``: with their directories and
    identities.
    """

    directory: str
    dtype: str
    plan: Plan
    threads: int
    context: int
    max_sequences: int
    batch_tokens: int
    end_tokens: tuple[int, ...]
    identity: str = ""
    self_test: bool = True
    meet_seconds: float = MEET_TIMEOUT
    device: str = CPU
    encrypt: bool | None = None
    weights: str | None = None
    graphs: bool = True
    adapters: tuple[Adapter, ...] = ()
    copies: int = 1
    copies_left: int = 0
    prefix_cache: bool = True
    prefix_tokens: int | None = None
    prefix_disk: int = 0

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> RankOptions:
        """Raises `ConfigError` where ``text`` is not what `to_json` made."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"a rank's options cannot be read: {error}") from None
