"""Start the ranks of each contestant. Every function takes the control socket and a folder for output."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ferrule import _native
from ferrule.bench.fabric.job import JobError
from ferrule.bench.fabric.rank import FerruleOptions, MlxOptions, Options, RawOptions, TorchOptions
from ferrule.lab import ROUTED, Lab
from ferrule.launch import LocalLauncher
from ferrule.mlx_backend import LIBRARY, library

OPERATION_SECONDS = 60.0
"""The deadline of a single operation inside the ranks."""

_MPI_SOURCE = Path(__file__).with_name("mpi_rank.c")
_RING_PORT = 32323
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@dataclass(frozen=True)
class Setting:
    """Place of the ranks. ``folder``: for their files; ``cpus``: one per rank, or None where there are not enough.

    ``lab``: rank r runs on its host r modulo hosts; None: all run on this machine.
    """

    folder: Path
    ranks: int
    cpus: tuple[int, ...] | None
    lab: Lab | None = None


def pick_cpus(ranks: int) -> tuple[int, ...] | None:
    """One CPU per rank, if there are as many."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    available = sorted(os.sched_getaffinity(0))
    return tuple(available[:ranks]) if len(available) >= ranks else None


def launch_ferrule(setting: Setting, transports: Sequence[str], rails: int, control: Path, logs: Path) -> LocalLauncher:
    options = FerruleOptions(OPERATION_SECONDS, tuple(transports))
    return _python(setting, options, control, logs, env={"FERRULE_RAILS": str(rails)})


def launch_torch(
    setting: Setting, backend: str, transport: str, rails: int, control: Path, logs: Path
) -> LocalLauncher:
    options = TorchOptions(OPERATION_SECONDS, backend, str(logs.with_name("store")), setting.ranks)
    interfaces = [_LOOPBACK] * setting.ranks
    if setting.lab is not None:
        lab = setting.lab
        interfaces = [ROUTED if lab.forwarding else lab.interfaces(rank % lab.size)[0] for rank in range(setting.ranks)]
    return _python(
        setting,
        options,
        control,
        logs,
        env={"FERRULE_TRANSPORT": transport, "FERRULE_RAILS": str(rails)},
        rank_env=[{"GLOO_SOCKET_IFNAME": interface} for interface in interfaces],
    )


def launch_mlx(setting: Setting, backend: Literal["ring", "mpi"], control: Path, logs: Path) -> LocalLauncher:
    options = MlxOptions(backend)
    if backend == "mpi":
        return _python(setting, options, control, logs, env={LIBRARY: library()})
    hostfile = logs.with_name("hosts.json")
    hostfile.write_text(json.dumps(_ring(setting)))
    rank_env = [{"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)} for rank in range(setting.ranks)]
    return _python(setting, options, control, logs, rank_env=rank_env)


def _ring(setting: Setting) -> list[list[str]]:
    """Where each rank of MLX's ring listens for the one before it."""
    ranks, lab = setting.ranks, setting.lab
    if lab is not None:
        return [[f"{lab.address(rank, (rank - 1) % ranks)}:{_RING_PORT}"] for rank in range(ranks)]
    with ExitStack() as stack:
        # No other program can take these ports while we hold them; the ring listens on them a moment later.
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(ranks)]
        return [[f"127.0.0.1:{probe.getsockname()[1]}"] for probe in probes]


def launch_raw(setting: Setting, control: Path, logs: Path) -> LocalLauncher:
    """Two ranks that inherit a connected socket each, and a file to share."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends = [stack.enter_context(socket.create_connection(listener.getsockname()))]
        ends.append(stack.enter_context(listener.accept()[0]))
        for end in ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory = stack.enter_context(tempfile.TemporaryFile(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        memory.truncate(_native.raw_shm_bytes())
        fds = [end.fileno() for end in ends]
        options = RawOptions(OPERATION_SECONDS, tuple(fds), memory.fileno())
        two = Setting(setting.folder, 2, pick_cpus(2))
        pass_fds = [[fd, memory.fileno()] for fd in fds]
        return _python(two, options, control, logs, pass_fds=pass_fds)


def _python(
    setting: Setting,
    options: Options,
    control: Path,
    logs: Path,
    *,
    env: Mapping[str, str] | None = None,
    rank_env: Sequence[Mapping[str, str]] | None = None,
    pass_fds: Sequence[Sequence[int]] | None = None,
) -> LocalLauncher:
    argv = [sys.executable, "-m", "ferrule.bench.fabric.rank", str(control), msgspec.json.encode(options).decode()]
    command: list[str] | Callable[[int], list[str]] = argv
    own = rank_env or [{}] * setting.ranks
    lab = setting.lab
    if lab is not None:
        command = lambda rank: lab.command(rank % lab.size, argv)  # noqa: E731 - the launcher takes either
        own = [{**host, **given} for host, given in zip(lab.rank_env(setting.ranks), own, strict=True)]
    cpus = None if setting.cpus is None else [[cpu] for cpu in setting.cpus]
    return LocalLauncher(
        command,
        setting.ranks,
        env={"OMP_NUM_THREADS": "1", **(env or {})},
        rank_env=own,
        cpus=cpus,
        output=logs,
        pass_fds=pass_fds,
    ).start()


def build_mpi_rank(folder: Path) -> Path:
    """Compile mpi_rank.c, once per folder. Raises `JobError` with what the compiler said."""
    program = folder / "mpi_rank"
    if not program.exists():
        command = ["mpicc", "-std=c11", "-O2", "-o", str(program), str(_MPI_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise JobError(f"mpicc cannot compile the benchmark's program: {done.stderr.strip()[-500:]}", lost=False)
    return program


def launch_openmpi(setting: Setting, program: Path, transport: str, control: Path, logs: Path) -> LocalLauncher:
    """mpirun as the only child; it polls as it does by default, unless ranks must share a core."""
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    options = {"pml": "ob1", "btl": f"self,{transport_of_openmpi(transport, said)}", "btl_tcp_if_include": _LOOPBACK}
    options["mpi_yield_when_idle"] = "0" if setting.cpus else "1"
    command = ["mpirun", "-n", str(setting.ranks), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    for name, value in options.items():
        command += ["--mca", name, value]
    cpus = ",".join(map(str, setting.cpus)) if setting.cpus else "-"
    return LocalLauncher([*command, str(program), str(control), cpus], 1, output=logs).start()


def transport_of_openmpi(transport: str, version: str) -> str:
    """The module's name: shared memory was renamed in Open MPI 5. ``version``: what ``mpirun --version`` says."""
    if transport == "tcp":
        return "tcp"
    found = re.search(r"Open MPI\) (\d+)", version)
    return "sm" if found is not None and int(found[1]) >= 5 else "vader"
