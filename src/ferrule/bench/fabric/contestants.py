"""Choice of the implementations that take part on this machine, and of those whose ranks share processes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

from ferrule.bench.fabric.job import Job
from ferrule.bench.fabric.launchers import (
    Setting,
    build_mpi_rank,
    launch_ferrule,
    launch_mlx,
    launch_openmpi,
    launch_raw,
    launch_torch,
)
from ferrule.bench.fabric.sweep import OURS, Contestant

IN_LABS = (*OURS, "gloo")
"""Those whose ranks can be started on emulated hosts."""
LIMITS = (
    Contestant("raw", "tcp"),
    Contestant("raw", "tcp-both"),
    Contestant("raw", "shm"),
    Contestant("raw", "memory"),
)
TORCH_ALONE = Contestant("raw", "torch")


def limits_of(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Limits to compare with: what the machine can do, and what torch takes for itself."""
    torch = any(contestant.impl == "ferrule-torch" for contestant in contestants)
    return [*LIMITS, *([TORCH_ALONE] if torch else [])]


def missing(impl: str) -> str | None:
    """Reason why ``impl`` cannot take part here, with the cure; None if it can."""
    if impl in ("gloo", "ferrule-torch") and find_spec("torch") is None:
        return "PyTorch is not installed: pip install torch"
    if impl == "openmpi" and not (shutil.which("mpirun") and shutil.which("mpicc")):
        return "Open MPI is not installed: apt install openmpi-bin libopenmpi-dev"
    if impl == "mlx-ring" and find_spec("mlx") is None:
        return "MLX is not installed: pip install 'mlx[cpu]'"
    return None


def group_by_job(contestants: Sequence[Contestant]) -> list[list[Contestant]]:
    """Those that can share processes without disturbing each other do, the others each have their own."""
    jobs: dict[tuple[str, int], list[Contestant]] = {}
    for contestant in contestants:
        shared = {"ferrule-native": "ferrule", "ferrule": "ferrule", "raw": "raw"}
        name = str(contestant) if contestant == TORCH_ALONE else shared.get(contestant.impl, str(contestant))
        jobs.setdefault((name, contestant.rails), []).append(contestant)
    return list(jobs.values())


def start_job(contestants: Sequence[Contestant], setting: Setting) -> Job:
    """Start the ranks of one job; they are ready after `Job.meet`. Raises `JobError` if it cannot be built."""
    first = contestants[0]
    folder = setting.folder / f"{first.impl}-{first.transport}-{first.rails}"
    if first == TORCH_ALONE:
        launch = partial(launch_torch, setting, "nothing", first.transport, first.rails)
    elif first.impl == "raw":
        return Job(folder, 2, partial(launch_raw, setting))
    elif first.impl == "openmpi":
        launch = partial(launch_openmpi, setting, build_mpi_rank(setting.folder), first.transport)
    elif first.impl == "mlx-ring":
        launch = partial(launch_mlx, setting, "ring")
    elif first.impl in ("gloo", "ferrule-torch"):
        launch = partial(launch_torch, setting, first.impl.removesuffix("-torch"), first.transport, first.rails)
    else:
        launch = partial(launch_ferrule, setting, list(dict.fromkeys(c.transport for c in contestants)), first.rails)
    return Job(folder, setting.ranks, launch)
