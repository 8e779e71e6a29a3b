"""Run checks on rank processes, many in one launch, because each process spends seconds on importing torch."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

from torch.utils import backend_registration

from ferrule.launch import LocalLauncher

RANK = Path(__file__).with_name("torch_rank.py")
SECONDS = 240.0
HAS_DEVICES = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
"""Whether torch knows devices that are written in Python, as the emulated one is."""


def checks_of(*modules: ModuleType) -> list[str]:
    """The public functions of the modules as ``module.function``, in the order of the files."""
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, FunctionType) and value.__module__ == module.__name__
    ]


def run_checks(
    checks: Sequence[str], ranks: int, env: Mapping[str, str] | None = None, devices: Sequence[str] = ()
) -> dict[str, str]:
    """Failures of each check, on any ranks; an empty text where nothing did. ``devices``: where each
    rank's tensors are, if not in host memory."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        launcher = LocalLauncher(
            [sys.executable, str(RANK), *checks],
            ranks,
            env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(env or {})},
            rank_env=[
                {"REPORT_FD": str(file.fileno()), "TORCH_DEVICE": device}
                for file, device in zip(files, devices or [""] * ranks, strict=True)
            ],
            pass_fds=[[file.fileno()] for file in files],
        )
        with launcher:
            ended = launcher.wait(SECONDS)
        failures = dict.fromkeys(checks, "")
        for rank, file in enumerate(files):
            file.seek(0)
            reports = dict(json.loads(line) for line in file)
            for check in checks:
                failure = reports.get(check, f"was not reached; the job ended with {ended}")
                failures[check] += f"rank {rank}: {failure}\n" if failure else ""
        return failures
