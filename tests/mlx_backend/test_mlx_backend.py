"""Stock MLX on the fabric: every operation, and what it says when ranks are lost or disagree."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from ferrule.lab import Lab, chain
from ferrule.launch import LocalLauncher
from ferrule.mlx_backend import LIBRARY, library

pytestmark = pytest.mark.skipif(find_spec("mlx") is None, reason="MLX is not installed")

HERE = Path(__file__).parent
SECONDS = 60.0
ALL = ("reductions", "rounding", "gathering", "splitting", "messages", "graphs", "streams")


def run(
    folder: Path,
    ranks: int,
    cases: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    lab: Lab | None = None,
    program: str = "mlx_cases.py",
) -> tuple[int, ...]:
    """Exit codes of the ranks; fails with what they said unless all are 0 or, for a rank that was to be killed, -9."""
    command = [sys.executable, str(HERE / program), *cases]
    launcher = LocalLauncher(
        command if lab is None else lambda rank: lab.command(rank, command),
        ranks,
        env={LIBRARY: library(), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder), **(env or {})},
        rank_env=None if lab is None else lab.rank_env(ranks),
        output=folder,
    )
    with launcher:
        codes = wait_for_all(launcher)
    said = "\n".join(log.read_text() for log in sorted(folder.glob("*.log")))
    assert set(codes) <= {0, -signal.SIGKILL}, (codes, said)
    return codes


def wait_for_all(launcher: LocalLauncher) -> tuple[int, ...]:
    """Unlike `LocalLauncher.wait` it does not end the others where one fails."""
    deadline = time.monotonic() + SECONDS
    while None in (codes := launcher.poll()):
        assert time.monotonic() < deadline, codes
        time.sleep(0.02)
    return tuple(code for code in codes if code is not None)


def test_all_of_it_between_four_ranks(tmp_path: Path) -> None:
    run(tmp_path, 4, ALL)


@pytest.mark.parametrize("cases", [("lost",), ("to_itself", "different")], ids="-".join)
def test_failures_are_errors_of_python(tmp_path: Path, cases: Sequence[str]) -> None:
    codes = run(tmp_path, 3, cases)
    assert (codes[-1] == -signal.SIGKILL) == ("lost" in cases)


def test_without_other_ranks(tmp_path: Path) -> None:
    run(tmp_path, 1, ["alone"], env=dict.fromkeys(("FERRULE_RANK", "FERRULE_WORLD_SIZE", "FERRULE_LISTEN_FD"), ""))
    run(tmp_path, 1, ["nobody_comes"], env={"FERRULE_WORLD_SIZE": "2", "FERRULE_TIMEOUT": "0.3"})


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_of_it_on_each_transport(tmp_path: Path, ranks: int, transport: str) -> None:
    run(tmp_path, ranks, ALL, env={"FERRULE_TRANSPORT": transport})


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_hosts_in_a_chain(tmp_path: Path) -> None:
    """The ends share no cable: MLX's ring and JACCL cannot do this. Sums are rounded at each hop."""
    with Lab(chain(3)) as lab:
        run(tmp_path, 3, [case for case in ALL if case != "rounding"], lab=lab)
    with Lab(chain(3)) as lab:
        run(tmp_path, 3, ["lost"], lab=lab)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlx_lm") is None, reason="mlx-lm is not installed")
def test_mlx_lm_says_the_same_as_on_one_rank(tmp_path: Path) -> None:
    run(tmp_path, 2, ["tensor", "pipeline"], program="mlx_lm_rank.py")
