"""Start of a model by a guest: its files and tokenizer read, its options checked, its program found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Final

from ferrule.engine.guests.engine import GuestEngine
from ferrule.engine.guests.guest import Guest, Launch, Program, Room
from ferrule.engine.host.prepare import name_of, prepared
from ferrule.engine.host.processes import rank_threads
from ferrule.engine.options import EngineOptions
from ferrule.engine.types import Progress, ProgressCallback
from ferrule.errors import ConfigError
from ferrule.model import ModelSpec
from ferrule.model.gguf import full_path, gguf_file
from ferrule.plan import Plan

if TYPE_CHECKING:
    from ferrule.engine.guests.members import Members
    from ferrule.lab import Lab

FLAGS: Final[Mapping[str, str]] = {
    "tensor": "--tp",
    "pipeline": "--pp",
    "shares": "--shares",
    "context_parallel": "--context-parallel",
    "expert_parallel": "--expert-parallel",
    "expert_exchange": "--expert-exchange",
    "dtype": "--dtype",
    "weights": "--weights",
    "kv_cache": "--kv-cache",
    "adapters": "--adapter",
    "speculate": "--speculate",
    "stream_weights": "--stream-weights",
    "prefix_cache": "--no-prefix-cache",
    "prefix_disk": "--prefix-cache-disk",
    "inter_token_limit": "--inter-token-limit",
    "encrypt": "--encrypt",
}
"""Options of an engine that not every one has, and the flags that change them."""


def changed(options: EngineOptions) -> list[str]:
    """Those of `FLAGS` that are not as they are by default."""
    defaults = {each.name: each.default for each in fields(EngineOptions) if each.default is not MISSING}
    return [name for name in FLAGS if getattr(options, name) != defaults[name]]


def check_options(guest: Guest, options: EngineOptions) -> None:
    """Raises `ConfigError` for an option that ``guest`` does not have."""
    for name in changed(options):
        if name not in guest.options:
            raise ConfigError(
                f"{FLAGS[name]} is not for the engine {guest.name}: leave it out, or serve the model with "
                "--engine ferrule"
            )


def found(guest: Guest) -> Program:
    """Program of ``guest`` on this machine. Raises `ConfigError`, with the cure, where it is not installed."""
    program = guest.find()
    if program is None:
        raise ConfigError(f"--engine {guest.name}: its program is not on this machine; {guest.install}")
    return program


def plan_of(options: EngineOptions, spec: ModelSpec) -> Plan:
    """The split that the user asked for, whether the built-in engine could run it or not. Raises `PlanError`."""
    return options.plan(replace(spec, tensor_refusal=None, pipeline_refusal=None, expert_refusal=None))


async def start_guest(
    guest: Guest,
    options: EngineOptions,
    on_progress: ProgressCallback | None = None,
    *,
    lab: Lab | None = None,
    members: Members | None = None,
) -> GuestEngine:
    """Find and check the model, and load it by ``guest``. Raises `ModelError`, `PlanError` or `ConfigError` before any
    process is started where the files or the options are at fault, `EngineError` where the guest fails. ``lab`` and
    ``members``: as of `Launch`."""
    program = found(guest)
    check_options(guest, options)
    model = await prepared(options, lambda spec: plan_of(options, spec), on_progress, unknown=guest.unknown)
    gguf = gguf_file(model.directory)
    guest.check(model.directory if gguf is None else gguf, model.spec, options)
    launch = Launch(
        program,
        full_path(model.directory if gguf is None else gguf),
        name_of(options, model.directory),
        model.spec,
        model.plan,
        options,
        Room(options.max_context or model.longest, options.max_sequences),
        rank_threads(options.threads, 1 if members is not None else model.plan.world_size),
        lab=lab,
        members=members,
    )
    launch = replace(launch, room=guest.room(launch))
    engine = GuestEngine(guest, launch, model)
    if on_progress is not None:
        on_progress(Progress(0, f"loading by {guest.name}"))
    try:
        await engine.load()
    except BaseException:
        await engine.close()
        raise
    return engine
