"""This machine as a `DeviceSpec`, measured by a short benchmark in a process of its own, and remembered."""

from __future__ import annotations

import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
import psutil

from ferrule import __version__
from ferrule._native import kernel_instructions
from ferrule.errors import PlanError
from ferrule.files import FileRecord, cache_directory, locked, read_record, write_record
from ferrule.links import nvidia_smi
from ferrule.links.reader import identity
from ferrule.model.embedded import demo_path
from ferrule.model.read import read_model
from ferrule.plan.cluster.spec import DeviceSpec
from ferrule.plan.device.backend import processor
from ferrule.plan.device.benchmark import Effort, Figures
from ferrule.plan.runtime import BUILT_IN_ENGINE
from ferrule.process import tied, usable_cores
from ferrule.process.memory import memory_free

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_AGE_SECONDS = 30 * 86400.0
TIMEOUT = 120.0
_VERSION: Final = 2
_MAX_ENTRIES = 50
_LOCK_SECONDS = 2.0
_PACKAGES = ("torch", "transformers", "numpy")
_RANKS = "ranks 2"
"""To be counted up when a rank of the same versions takes other memory."""
_RANK_PROGRAM = """
import importlib, json, sys
from ferrule.process.memory import private_bytes
name, timed = sys.argv[1:]
found = {}
try:
    rank = importlib.import_module(name)
    import torch
    torch.ones(256, 256) @ torch.ones(256, 256)
except ImportError:
    import ferrule.fabric
    timed = ""
found["private"] = private_bytes()
if timed:
    found["token"], found["resume"] = rank.step_seconds()
print(json.dumps(found))
"""


class _Store(FileRecord, frozen=True, tag="measured-devices"):
    """The file in which figures are remembered, by `_key`."""

    version: Literal[2]
    devices: dict[str, Figures]


def measure_device(
    name: str = "",
    *,
    rank: str,
    model: Path | None = None,
    unit: str = "auto",
    threads: int | None = None,
    fresh: bool = False,
    cache: Path | None = None,
) -> DeviceSpec:
    """This machine with the memory that is free now. ``name``: by default the host's. The others and errors: those of
    `measure_figures`; `PlanError` where no memory is free."""
    figures = measure_figures(rank=rank, model=model, unit=unit, threads=threads, fresh=fresh, cache=cache)
    return device_from(figures, name or socket.gethostname(), free_now(figures))


def recall_device(name: str = "", *, unit: str = "auto", threads: int | None = None) -> DeviceSpec | None:
    """The same if it was measured in the last 30 days, without measuring anything; else None."""
    folder = _cache_folder()
    wanted = Effort(unit=unit, threads=threads or usable_cores(), dtype="bf16", folder=str(folder.absolute()))
    figures = _recall(folder / "devices.json", _key(wanted))
    return None if figures is None else device_from(figures, name or socket.gethostname(), free_now(figures))


def measure_figures(
    *,
    rank: str,
    model: Path | None = None,
    unit: str = "auto",
    threads: int | None = None,
    dtype: str = "bf16",
    fresh: bool = False,
    effort: Effort | None = None,
    cache: Path | None = None,
    timeout: float = TIMEOUT,
) -> Figures:
    """Measure this machine, or recall what was measured in the last 30 days with the same hardware and versions.

    ``rank``: the module whose ``step_seconds`` times a rank of the engine; it is imported in a process of its own.
    ``model``: the folder whose disk is read, by default the cache's. ``unit``: "cpu", "cuda:1", "xpu", "mps", or "auto"
    for the best one. ``threads`` that compute on processors: by default all cores. ``dtype`` in which reading is
    measured. ``fresh``: measure in any case. ``effort``: how long (its other fields are set here). ``cache``: the
    file to remember in. The first time takes about 4 s and as long as importing torch and transformers. Raises
    `PlanError` where it fails, takes over ``timeout`` seconds, or there is no such ``unit``.
    """
    folder = model if model is not None else _cache_folder()
    wanted = replace(
        effort or Effort(), unit=unit, threads=threads or usable_cores(), dtype=dtype, folder=str(folder.absolute())
    )
    store = cache if cache is not None else _cache_folder() / "devices.json"
    key = _key(wanted)
    figures = None if fresh else _recall(store, key)
    if figures is None:
        figures = _benchmark(wanted, timeout)
        # Only processors run the built-in engine.
        needs = rank_needs(rank, timeout, timed=figures.unit == "cpu")
        figures = replace(figures, runtime_bytes=needs.private, resume_seconds=needs.resume, at=time.time())
        if needs.token is not None:
            figures = replace(figures, eager_seconds=_eager_seconds(needs.token))
        _remember(store, key, figures)
    return figures


def device_from(figures: Figures, name: str, memory: int) -> DeviceSpec:
    """The planner's view of what was measured. Raises `PlanError` where no memory is free."""
    return DeviceSpec(
        name,
        memory,
        figures.memory_bandwidth,
        figures.flops,
        kind=f"{figures.title} ({figures.unit.partition(':')[0]})",
        launch_seconds=figures.launch_seconds,
        eager_seconds=figures.eager_seconds,
        resume_seconds=figures.resume_seconds,
        disk_read=figures.disk_read,
        runtime_bytes=figures.runtime_bytes,
        watts_idle=figures.watts_idle,
        watts_busy=figures.watts_busy,
        measured=True,
        device=figures.unit,
        copy_rate=None if figures.copies is None else min(figures.copies.to_device, figures.copies.to_host),
        copy_seconds=None if figures.copies is None else figures.copies.seconds,
        unified=figures.unified and figures.unit != "cpu",
    )


def alike(figures: Figures) -> tuple[Figures, ...]:
    """Those of each of the devices here that are equal to the one that was measured, this one first."""
    kind, _, first = figures.unit.partition(":")
    numbers = [str(number) for number in range(figures.count) if str(number) != (first or "0")]
    return (figures, *(replace(figures, unit=f"{kind}:{number}") for number in numbers))


def _eager_seconds(token_seconds: float) -> float:
    """Per operation of an engine that takes so long for a token of the embedded model. Its few weights are in caches:
    all of that counts as starting operations."""
    model = read_model(str(demo_path()))
    return token_seconds / (sum(map(BUILT_IN_ENGINE.operations, model.decoder)) + BUILT_IN_ENGINE.end_of(model))


@dataclass(frozen=True)
class RankNeeds:
    """``private``: bytes of memory of a process that has imported a rank and multiplied once, of one with the fabric
    alone where the engine is not installed. ``token``: seconds that a rank takes for a token of the embedded model,
    None there, or if it is not timed; ``resume``: how much longer after it has waited."""

    private: int
    token: float | None = None
    resume: float = 0.0


def rank_needs(rank: str, timeout: float = TIMEOUT, *, timed: bool = True) -> RankNeeds:
    """Memory and time that a rank of the built-in engine needs here; seconds only if they are to be ``timed``."""
    what = "what a rank needs beside its weights"
    arguments = ["-c", _RANK_PROGRAM, rank, "timed" if timed else ""]
    return _answer(_python(arguments, timeout, {"OMP_NUM_THREADS": "1"}, what), RankNeeds, what)


def _benchmark(effort: Effort, timeout: float) -> Figures:
    what = "the benchmark of this machine"
    arguments = ["-m", "ferrule.plan.device.benchmark", msgspec.json.encode(effort).decode()]
    return _answer(_python(arguments, timeout, {}, what), Figures, what)


def _answer(told: str, kind: type[_T], what: str) -> _T:
    """The last line that was printed. ``what``: for errors."""
    try:
        return msgspec.json.decode(told.splitlines()[-1], type=kind)
    except (msgspec.DecodeError, IndexError) as error:
        raise PlanError(f"{what} printed what cannot be read: {error}") from error


def _python(arguments: list[str], timeout: float, env: Mapping[str, str], what: str) -> str:
    try:
        done = subprocess.run(
            tied([sys.executable, *arguments]),  # it would compute on, with all cores, when we are killed
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env={**os.environ, **env},
        )
    except subprocess.TimeoutExpired:
        raise PlanError(f"{what} took longer than {timeout:g} s; try again when the machine has less to do") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PlanError(f"{what} failed: {last}")
    return done.stdout


def free_now(figures: Figures) -> int:
    """Bytes that a model could fill now. Of a GPU whose driver has no tool here, those when it was measured; of one
    that computes in the host's memory, what is free of that."""
    kind, _, number = figures.unit.partition(":")
    if kind in ("cuda", "xpu") and not figures.unified:
        free = _nvidia_free(number or "0") if kind == "cuda" else None
        return figures.memory_free if free is None else min(free, figures.memory_total)
    free, _ = memory_free()
    return min(free, figures.memory_total)


_NVIDIA_SECONDS = 5.0


def _nvidia_free(number: str) -> int | None:
    """Bytes free on that NVIDIA GPU by its driver's tool; None where there is none."""
    try:
        return int(nvidia_smi.ask("memory.free", _NVIDIA_SECONDS, number)[0][0]) << 20
    except (ValueError, IndexError):
        return None


def _cache_folder() -> Path:
    try:
        return cache_directory()
    except RuntimeError:
        return Path.cwd()


def _key(effort: Effort) -> str:
    """Hardware, versions and what was asked for: another one of these, and it is measured anew."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    gpus = (
        sorted(path.name for name in ("nvidia[0-9]*", "dri/renderD*") for path in Path("/dev").glob(name))
        + ["kfd"] * Path("/dev/kfd").exists()
    )
    total = f"{psutil.virtual_memory().total >> 20} MiB"
    hardware = [_machine(), processor(), str(os.cpu_count()), total, platform.release(), *gpus]
    folder = next((path for path in (Path(effort.folder), *Path(effort.folder).parents) if path.is_dir()), Path("/"))
    disk = str(folder.stat().st_dev)
    asked = msgspec.json.encode(replace(effort, folder=""), order="sorted").decode()
    kernels = f"kernels {kernel_instructions()}"
    return " | ".join([f"ferrule {__version__}", _RANKS, kernels, *versions, *hardware, f"disk {disk}", asked])


def _machine() -> str:
    # Not fabric's name of a host (`fabric.join.hosts`), which differs by emulated host and by kernel: a change of
    # either one's hash would lose what is remembered under it.
    try:
        return identity(Path("/etc/machine-id").read_text()) or ""
    except OSError:
        return socket.gethostname()


def _recall(store: Path, key: str) -> Figures | None:
    figures = _read(store).get(key)
    return figures if figures is not None and 0 <= time.time() - figures.at < MAX_AGE_SECONDS else None


def _remember(store: Path, key: str, figures: Figures) -> None:
    try:
        with locked(store.with_name(f".{store.name}.lock"), _LOCK_SECONDS):
            entries = _read(store)
            entries.pop(key, None)
            kept = dict([*entries.items(), (key, figures)][-_MAX_ENTRIES:])
            write_record(store, _Store(_VERSION, kept))
    except OSError as error:
        _log.info("what was measured of this machine cannot be kept in %s: %s", store, error)


def _read(store: Path) -> dict[str, Figures]:
    """Remembered figures; none where anything is wrong with the file: the machine is only measured anew."""
    try:
        return read_record(store, _Store).devices
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s cannot be read (%r): the machine is measured anew", store, error)
        return {}
