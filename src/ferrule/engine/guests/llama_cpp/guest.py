"""llama.cpp as a guest: what it does, and how ``llama-server`` is started."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from ferrule.engine.abilities import Abilities
from ferrule.engine.device_names import AUTO, CPU, parse_device
from ferrule.engine.guests.guest import (
    Answer,
    Ask,
    Command,
    Guest,
    Launch,
    Piece,
    Post,
    Program,
    Room,
    on_path,
    said_by,
)
from ferrule.engine.guests.llama_cpp.answer import Event, Stream, post_of, whole_of
from ferrule.engine.guests.llama_cpp.worker import WORKER_NAMES
from ferrule.engine.guests.llama_cpp.workers import workers
from ferrule.engine.options import EngineOptions
from ferrule.engine.types import RankInfo
from ferrule.errors import ConfigError, ModelError, PlanError
from ferrule.model import ModelSpec
from ferrule.process.memory import memory_free
from ferrule.units import format_bytes

SERVER_NAMES: Final = ("llama-server",)
MOST_SEQUENCES: Final = 16
"""At once: each has a whole context of keys and values."""
DEVICE_SEQUENCES: Final = 4
"""On a device, of whose memory nothing is known here."""
CACHE_SHARE: Final = 0.5
"""Of the memory that is free, without the weights, what caches may take."""
LEAST_CONTEXT: Final = 2048
_CACHE_TYPES: Final = {"int8": "q8_0", "int4": "q4_0"}
_CACHE_BYTES: Final = {"f32": 2.0, "f16": 1.0, "q8_0": 8.5 / 16, "q4_0": 4.5 / 16}
"""To those of numbers of 16 bits."""
_ALL_LAYERS: Final = 9999
_WHERE_KNOWN: Final = (
    ("--no-ui",),
    ("--offline",),
    ("--fit", "off"),
    ("--no-kv-unified",),  # a sequence never lacks room because of others
    ("--log-verbosity", "2"),
    ("--cache-ram", "1024"),  # MiB of prompts that were dropped from the caches, which are 8 GiB otherwise
)
"""Flags for builds that have them."""
_LEVELS: Final = re.compile(r"\b2: warning")
"""Of its log; builds of another age mean other things by them."""
_DEVICE: Final = re.compile(r"^ +(?!CPU)\w+: ", re.MULTILINE)
_VERSION: Final = re.compile(r"version: (.+)")


class LlamaCpp(Guest):
    """GGUF files on processors and GPUs; a pipeline's stages behind the first are `rpc-server`s."""

    abilities: ClassVar = Abilities(
        "llama.cpp",
        # Its presence and frequency penalties count the prompt, too, which OpenAI's do not.
        frozenset({"min_p", "seed", "repetition_penalty", "logit_bias", "logprobs", "ignore_eos"}),
        frozenset({"json_schema"}),
    )
    install: ClassVar = (
        "install llama.cpp so that llama-server is on the PATH: a package of your distribution (llama.cpp), "
        "Homebrew's (brew install llama.cpp), or a build of your own"
    )
    facts: ClassVar = "/props"
    unknown: ClassVar = True
    options: ClassVar = frozenset({"pipeline", "dtype", "kv_cache", "prefix_cache"})

    def find(self) -> Program | None:
        return on_path(*SERVER_NAMES)

    def version(self, program: Program) -> str:
        told = _VERSION.search(said_by(program, "--version"))
        return "" if told is None else told[1].strip()

    def check(self, model: Path, spec: ModelSpec, options: EngineOptions) -> None:
        if model.suffix != ".gguf":
            raise ModelError(
                f"{options.model}: llama.cpp runs GGUF files only; take the model's GGUF file, or serve it with "
                "--engine ferrule"
            )
        if options.dtype not in ("auto", "float32"):
            raise ConfigError(f"--dtype {options.dtype}: llama.cpp chooses by itself what it computes in; leave it out")
        if options.device not in (CPU, AUTO):
            self._check_device(options.device)
        if options.pipeline > 1:
            if "," in options.device:
                raise ConfigError(f"--device {options.device}: with --pp each rank of llama.cpp takes the same device")
            if on_path(*WORKER_NAMES) is None:
                raise ConfigError(
                    f"--pp {options.pipeline}: llama.cpp needs {WORKER_NAMES[0]} for that, which is not on the PATH; "
                    "build it with -DGGML_RPC=ON"
                )

    def _check_device(self, device: str) -> None:
        """Raises `ConfigError` where this build says that it finds no device."""
        program = self.find()
        if program is None or "--list-devices" not in _flags(program):
            return
        if not _DEVICE.search(said_by(program, "--list-devices")):
            raise ConfigError(
                f"--device {device}: {program.path} finds no device beside the processor; take a build for it, or "
                "leave --device out"
            )

    def room(self, launch: Launch) -> Room:
        if not _on_processor(launch.options):
            return Room(launch.room.context, min(launch.room.sequences, DEVICE_SEQUENCES))
        free = memory_free()[0] - (0 if launch.options.pipeline > 1 else launch.spec.bytes)
        scale = _CACHE_BYTES[_cache_type(launch.options)]
        return room_in(int(CACHE_SHARE * max(0, free)), launch.spec, launch.room, scale, launch.options.max_context)

    @asynccontextmanager
    async def begun(self, launch: Launch) -> AsyncIterator[Command]:
        line = [str(launch.program.path), *_arguments(launch)]
        if launch.lab is not None:
            line = launch.lab.command(0, line)
        if launch.plan.world_size == 1:
            yield Command([*line, *_place(launch.options)])
            return
        async with workers(launch) as (addresses, lost):
            split = ",".join(str(stage.last_layer - stage.first_layer) for stage in launch.plan.stages)
            over = ["--rpc", ",".join(addresses), "--n-gpu-layers", str(_ALL_LAYERS), "--tensor-split", split]
            yield Command([*line, *over], lost=lost)

    def ranks(self, launch: Launch, pid: int) -> tuple[RankInfo, ...]:
        stages = launch.plan.stages
        hosts = [launch.host(rank) for rank in range(len(stages))]
        sizes = [launch.spec.rank_bytes(first_layer=each.first_layer, last_layer=each.last_layer) for each in stages]
        over = "rpc" if len(stages) > 1 else ""
        return tuple(
            RankInfo(rank, pid, hosts[rank], launch.options.device, sizes[rank], 0, 0, over)
            for rank in range(len(stages))
        )

    def context(self, facts: Mapping[str, Any]) -> int | None:
        told = facts["default_generation_settings"]["n_ctx"]
        if not isinstance(told, int) or told < 2:
            raise ValueError(f"a context of {told!r} tokens")
        return told

    def post(self, ask: Ask) -> Post:
        return post_of(ask, stream=True)

    def answer(self, ask: Ask) -> Answer:
        return Stream(ask.params)

    def whole(self, ask: Ask) -> Post:
        return post_of(ask, stream=False)

    def whole_answer(self, ask: Ask, data: bytes) -> Piece:
        return whole_of(ask, data)

    def refusal(self, data: bytes) -> str:
        try:
            told = msgspec.json.decode(data, type=Event)
        except msgspec.MsgspecError:
            return ""
        return "" if told.error is None else told.error.message


def room_in(memory: int, spec: ModelSpec, asked: Room, scale: float, wanted: int | None) -> Room:
    """Room that caches of so many bytes of ``memory`` give. ``asked``: the most; ``scale``: bytes of keys and values to
    those of the planner; ``wanted``: the context that the user wants, and no less. Raises `PlanError`."""
    context = asked.context
    one = scale * spec.cache_bytes(context) or 1.0
    if one > memory and wanted is None:
        context = max(min(context, LEAST_CONTEXT), int(context * memory / one))
        one = scale * spec.cache_bytes(context)
    if one > memory:
        raise PlanError(
            f"keys and values of {context:,} tokens take {format_bytes(int(one))}, and caches may take "
            f"{format_bytes(memory)} here; use --max-context with less",
            needed=int(one),
            available=memory,
        )
    return Room(context, max(1, min(asked.sequences, MOST_SEQUENCES, int(memory / one))))


def _on_processor(options: EngineOptions) -> bool:
    return options.device == CPU


def _place(options: EngineOptions) -> list[str]:
    """Where a server without workers computes."""
    if _on_processor(options):
        return ["--device", "none", "--n-gpu-layers", "0"]
    if options.device == AUTO:
        return ["--n-gpu-layers", str(_ALL_LAYERS)]
    _, number = parse_device(options.device)
    if number is None:
        return ["--n-gpu-layers", str(_ALL_LAYERS)]
    return ["--n-gpu-layers", str(_ALL_LAYERS), "--split-mode", "none", "--main-gpu", str(number)]


def _cache_type(options: EngineOptions) -> str:
    return _CACHE_TYPES.get(options.kv_cache, "f32" if options.dtype == "float32" else "f16")


def _arguments(launch: Launch) -> list[str]:
    options, room = launch.options, launch.room
    kept = _cache_type(options)
    given = {
        "--model": str(launch.model),
        "--alias": launch.name,
        "--host": str(launch.socket),
        "--ctx-size": str(room.context * room.sequences),
        "--parallel": str(room.sequences),
        "--threads": str(launch.threads),
        "--cache-type-k": kept,
        "--cache-type-v": kept,
    }
    line = [word for pair in given.items() for word in pair]
    known = _flags(launch.program)
    wanted = [*_WHERE_KNOWN, *([] if options.prefix_cache else [("--no-cache-prompt",)])]
    if "--no-ui" not in known:
        wanted.append(("--no-webui",))  # its former name
    return [*line, *(word for words in wanted if words[0] in known for word in words)]


@cache
def _flags(program: Program) -> frozenset[str]:
    """The flags that this build has, as its help lists them: they come and go."""
    told = said_by(program, "--help")
    found = frozenset(re.findall(r"--[a-z][a-z-]+", told))
    return found if _LEVELS.search(told) else found - {"--log-verbosity"}
