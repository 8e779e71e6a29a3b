"""vLLM as a guest: what it can do, where it is, and its processes on each host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ferrule.config import environment, outer_environment, pins_threads
from ferrule.engine.abilities import FIELDS, Abilities
from ferrule.engine.device_names import CPU, parse_device, parse_devices
from ferrule.engine.guests.environments import environment_of, find_environment, python_of
from ferrule.engine.guests.environments.own_package import outdated
from ferrule.engine.guests.guest import Answer, Ask, Command, Guest, Launch, Post, Program
from ferrule.engine.guests.held import HeldProcess
from ferrule.engine.guests.start import plan_of
from ferrule.engine.guests.vllm import members, nodes, requests
from ferrule.engine.guests.vllm.nodes import Node, Split, Work
from ferrule.engine.options import EngineOptions
from ferrule.engine.types import RankInfo, SamplingParams
from ferrule.errors import ConfigError, PlanError
from ferrule.model import ModelSpec
from ferrule.process.cores import in_order
from ferrule.process.memory import memory_free

_LOOPBACK = ("127.0.0.1", "lo")
_CACHE_BLOCK = 128
"""Tokens of a block of vLLM's cache on processors."""
_CACHE_PART = 0.5
"""Of this machine's free memory that caches may take, beside the weights."""
_MOST_LOGPROBS = 20
"""That vLLM reports unless told otherwise."""


class VllmGuest(Guest):
    """``stock``: as without Ferrule, over gloo, to be compared with."""

    abilities: ClassVar[Abilities] = Abilities(
        "vllm",
        frozenset(FIELDS) - {"prompt_logprobs", "adapter"},
        frozenset(requests.STRUCTURED),
        most_logprobs=_MOST_LOGPROBS,
    )
    install: ClassVar[str] = "ferrule engines install vllm"
    listens_openly: ClassVar[bool] = True  # torch's store, ZeroMQ and gloo
    facts: ClassVar[str | None] = "/v1/models"
    options: ClassVar[frozenset[str]] = frozenset({"tensor", "pipeline", "dtype", "prefix_cache"})

    def __init__(self, *, stock: bool = False) -> None:
        self._stock = stock

    def find(self) -> Program | None:
        ours = environment_of(self.name)
        found = find_environment(ours)
        return None if found is None or outdated(found) else Program(python_of(ours))

    def version(self, program: Program) -> str:
        found = find_environment(environment_of(self.name))
        return "" if found is None else found.found.get("vllm", found.version)

    def check(self, model: Path, spec: ModelSpec, options: EngineOptions) -> None:
        if not model.is_dir():
            raise ConfigError(f"vLLM reads directories of safetensors files, and {model} is a file")
        if any(parse_device(name)[0] != CPU for name in parse_devices(options.device)):
            raise ConfigError(f"--engine vllm runs on processors only as yet; leave --device {options.device} out")
        nodes.split_of(plan_of(options, spec))

    def begun(self, launch: Launch) -> AbstractAsyncContextManager[Command]:
        return _begun(launch, self._stock)

    def ranks(self, launch: Launch, pid: int) -> tuple[RankInfo, ...]:
        split, spec = nodes.split_of(launch.plan), launch.spec
        hosts = _host_names(launch, split)
        told = f"vllm {self.version(launch.program)} over {'gloo' if self._stock else 'the fabric'}"
        part = spec.bytes // split.ranks
        return tuple(
            RankInfo(rank, pid, hosts[rank * len(hosts) // split.ranks], CPU, part, 0, part, told)
            for rank in range(split.ranks)
        )

    def context(self, facts: Mapping[str, Any]) -> int | None:
        told = facts["data"][0]["max_model_len"]
        if not isinstance(told, int) or told < 2:
            raise ValueError(f"a context of {told!r} tokens")
        return told

    def resumes(self, params: SamplingParams) -> bool:
        # It counts the tokens of an answer for these, and not those of a prompt.
        return super().resumes(params) and not params.presence_penalty and not params.frequency_penalty

    def post(self, ask: Ask) -> Post:
        return requests.post(_NAME, ask)

    def answer(self, ask: Ask) -> Answer:
        return requests.Reader(ask)

    def refusal(self, data: bytes) -> str:
        return requests.refusal(data)


_NAME = "model"
"""By which vLLM's server knows the model; clients never see it."""


@asynccontextmanager
async def _begun(launch: Launch, stock: bool) -> AsyncIterator[Command]:
    split = nodes.split_of(launch.plan)
    hosts = _nodes(launch, split)
    if launch.members is not None and len(hosts) > 1:
        async with members.begun(launch, launch.members, hosts, partial(_work, launch, split, stock)) as server:
            yield server
        return
    at = None if launch.lab is None or len(hosts) == 1 else (hosts[0].address, launch.lab.new_port())
    work, key = _work(launch, split, stock, at), nodes.new_key()
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    outer = outer_environment()

    def command(number: int) -> Command:
        line = nodes.line(launch.program.path, work, hosts, number)
        variables = nodes.environment(hosts[number], work, key, outer)
        if launch.lab is None:
            return Command(line, variables, lost)
        return Command(launch.lab.command(number, line), variables | launch.lab.env(number), lost)

    async with AsyncExitStack() as stack:
        for number in range(1, len(hosts)):
            follower = command(number)
            process = HeldProcess(f"vllm, host {number}", follower.line, follower.environment)
            stack.push_async_callback(process.stop)
            process.lost.add_done_callback(partial(_note, lost, number, process))
        yield command(0)


def _note(lost: asyncio.Future[str], number: int, process: HeldProcess, ended: asyncio.Future[str]) -> None:
    if not ended.cancelled() and not lost.done():
        lost.set_result(f"on host {number} {ended.result()}{process.words}")


def _host_names(launch: Launch, split: Split) -> tuple[str, ...]:
    if launch.lab is not None:
        return launch.lab.names[: min(launch.lab.size, split.ranks)]
    count = 1 if launch.members is None else min(len(launch.members.hosts), split.ranks)
    return tuple(launch.host(number) for number in range(count))


def _nodes(launch: Launch, split: Split) -> list[Node]:
    """Where the ranks run: all here, or as many on each host of a lab or of the cluster. Raises `PlanError`."""
    count = len(_host_names(launch, split))
    if split.ranks % count:
        raise PlanError(f"vLLM needs as many ranks on each host, and {split.ranks} ranks are for {count} hosts")
    each, threads = split.ranks // count, launch.threads
    cores = in_order(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    here = each if launch.members is not None else split.ranks
    tied = nodes.share_cores(cores, here, threads) if pins_threads(environment()) else ()
    found = []
    for number in range(count):
        address, interface = _LOOPBACK
        if launch.lab is not None and count > 1:
            toward = 1 if number == 0 else 0
            address = launch.lab.address(number, toward)
            interface = launch.lab.between(number, toward)[-1].interface  # tensors use all of them
        found.append(Node(address, interface, each, threads, tied[number * each : (number + 1) * each]))
    return found


def _work(launch: Launch, split: Split, stock: bool, meeting: tuple[str, int] | None) -> Work:
    options = launch.options
    return Work(
        model=launch.model,
        name=_NAME,
        split=split,
        dtype=options.dtype,
        context=launch.room.context,
        sequences=launch.room.sequences,
        batch_tokens=options.batch_tokens,
        cache_bytes=_cache_bytes(launch, split),
        prefix_cache=options.prefix_cache,
        socket=launch.socket,
        meeting=meeting,
        stock=stock,
    )


def _cache_bytes(launch: Launch, split: Split) -> int:
    """For each rank: what all sequences can have, as far as memory goes, and what one must have."""
    blocks = -(-launch.room.context // _CACHE_BLOCK) + 1
    wide = 2 if launch.options.dtype == "float32" else 1  # the planner's numbers have 16 bits
    whole = wide * launch.spec.cache_bytes(blocks * _CACHE_BLOCK)
    one = whole * max(split.layers) / sum(split.layers) / split.tensor
    here = split.ranks if launch.members is None else split.ranks // len(_host_names(launch, split))
    free = memory_free()[0] * _CACHE_PART / here
    return int(max(one, min(one * launch.room.sequences, free)))
