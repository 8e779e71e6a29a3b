"""How vLLM is started on each of its hosts: command lines and environments. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import PlanError
from ferrule.plan import Plan
from ferrule.torch_backend.vllm import ACTIVE, DEVICES

PROGRAM = ("-m", "ferrule.torch_backend.vllm", "serve")
STOCK_PROGRAM = ("-m", "vllm.entrypoints.cli.main", "serve")
_PLUGIN = "ferrule"
"""Its name among vLLM's, of both kinds (pyproject.toml)."""
_KEY_BYTES = 32


@dataclass(frozen=True)
class Split:
    """``layers``: how many each pipeline stage has."""

    tensor: int
    layers: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return self.tensor * len(self.layers)


@dataclass(frozen=True)
class Node:
    """One of the hosts. ``address``: by which the others reach it, over ``interface``. ``cores``: of each of its ranks,
    which their threads are tied to; none: not tied, with ``threads`` for each."""

    address: str
    interface: str
    ranks: int
    threads: int
    cores: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Work:
    """What all hosts run. ``cache_bytes``: of keys and values, for each rank. ``meeting``: address and port of the
    first host, where the others find it; None for one host. ``stock``: as without Ferrule, over gloo, to be compared
    with."""

    model: Path
    name: str
    split: Split
    dtype: str
    context: int
    sequences: int
    batch_tokens: int
    cache_bytes: int
    prefix_cache: bool
    socket: Path
    meeting: tuple[str, int] | None = None
    stock: bool = False


def split_of(plan: Plan) -> Split:
    """The plan as vLLM takes it. Raises `PlanError` for one that it cannot run."""
    widths = {stage.width for stage in plan.stages}
    if any(stage.context for stage in plan.stages):
        raise PlanError("vLLM does not share keys and values out by pages; leave --cp out")
    if len(widths) > 1 or not all(stage.even for stage in plan.stages):
        raise PlanError("vLLM cuts the layers of all stages into the same number of equal parts; leave --shares out")
    if any(stage.experts for stage in plan.stages):
        raise PlanError("with --engine vllm experts are cut like other layers; leave --expert-parallel out")
    return Split(widths.pop(), tuple(stage.last_layer - stage.first_layer for stage in plan.stages))


def line(python: Path, work: Work, nodes: Sequence[Node], number: int) -> list[str]:
    """The command of host ``number``. The first one serves on the socket, the others have ranks alone."""
    program = STOCK_PROGRAM if work.stock else PROGRAM
    found = [str(python), *program, *options(work), "--distributed-executor-backend", "mp"]
    if len(nodes) > 1:
        assert work.meeting is not None
        address, port = work.meeting
        found += ["--nnodes", str(len(nodes)), "--node-rank", str(number)]
        found += ["--master-addr", address, "--master-port", str(port)]
    if number == 0:
        return [*found, "--uds", str(work.socket), "--disable-uvicorn-access-log", "--disable-log-stats"]
    return [*found, "--headless"]


def options(work: Work) -> list[str]:
    """Those that are the same on all hosts, behind ``vllm serve``."""
    split = work.split
    words = {
        "--tensor-parallel-size": split.tensor,
        "--pipeline-parallel-size": len(split.layers),
        "--served-model-name": work.name,
        "--dtype": work.dtype,
        "--max-model-len": work.context,
        "--max-num-seqs": work.sequences,
        "--max-num-batched-tokens": max(work.batch_tokens, work.sequences),
        "--kv-cache-memory-bytes": work.cache_bytes,
        "--seed": 0,
        # The defaults of requests are the front's, which has read the model's own.
        "--generation-config": "vllm",
    }
    flags = [
        "--enable-prefix-caching" if work.prefix_cache else "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
    ]
    named = [str(word) for pair in words.items() for word in pair]
    return [str(work.model), *named, *flags]


def environment(node: Node, work: Work, key: str, outer: Mapping[str, str]) -> dict[str, str | None]:
    """Variables of a host beside ``outer``, this process's. ``key``: of the fabric, the same on all hosts."""
    found = over_fabric(outer) | {
        "FERRULE_KEY": key,
        "VLLM_HOST_IP": node.address,
        # Groups of gloo are made beside the fabric's, to start with: no tensor goes over them.
        "GLOO_SOCKET_IFNAME": node.interface,
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, each)) for each in node.cores) or "nobind",
        "OMP_NUM_THREADS": str(node.threads),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the model is there, and nothing else is asked for
        "VLLM_LOGGING_LEVEL": outer.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    if len(work.split.layers) > 1:
        found["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, work.split.layers))
    return found | {ACTIVE: None} if work.stock else found


def over_fabric(outer: Mapping[str, str]) -> dict[str, str | None]:
    """Variables beside ``outer`` with which vLLM takes the fabric; None: not to be there."""
    found: dict[str, str | None] = {
        ACTIVE: DEVICES[0],
        "PYTHONPATH": None,  # of this Python's packages
        "VLLM_TARGET_DEVICE": None,  # else it chooses a platform of vLLM's own before any plugin is asked
        "VLLM_DISTRIBUTED_USE_SPLIT_GROUP": "0",
    }
    plugins = outer.get("VLLM_PLUGINS")
    if plugins is not None and _PLUGIN not in plugins.split(","):
        found["VLLM_PLUGINS"] = ",".join(filter(None, [plugins, _PLUGIN]))
    return found


def new_key() -> str:
    return secrets.token_hex(_KEY_BYTES)


def share_cores(cores: Sequence[int], ranks: int, threads: int) -> tuple[tuple[int, ...], ...]:
    """``threads`` cores for each of ``ranks``, none of them twice; none at all where there are too few."""
    if ranks * threads > len(cores):
        return ()
    return tuple(tuple(cores[rank * threads : (rank + 1) * threads]) for rank in range(ranks))
