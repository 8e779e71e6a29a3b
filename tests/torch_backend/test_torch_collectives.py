"""The collectives of torch.distributed on the backend ferrule, and what torch builds on them."""

from __future__ import annotations

import collective_checks
import framework_checks
import group_checks
import pytest
from torch_ranks import HAS_DEVICES, checks_of, run_checks

CHECKS = checks_of(collective_checks, group_checks, framework_checks)
if HAS_DEVICES:
    CHECKS += [
        f"device_checks.{name}"
        for name in (
            "one_wait_for_each_collective",
            "large_ones_in_pieces",
            "streams_are_kept",
            "streams_are_kept_by_pieces",
            "refusals_of_devices",
        )
    ]


@pytest.fixture(scope="module")
def two_ranks() -> dict[str, str]:
    return run_checks(CHECKS, 2)


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(two_ranks: dict[str, str], check: str) -> None:
    assert not two_ranks[check], two_ranks[check]


@pytest.mark.parametrize(
    ("ranks", "transport", "compiler"),
    [
        pytest.param(2, "tcp", "inductor", marks=pytest.mark.soak),  # most of a minute of compiling
        pytest.param(2, "tcp", "aot_eager", marks=pytest.mark.slow),
        pytest.param(3, "auto", "aot_eager", marks=pytest.mark.slow),
        pytest.param(4, "shm", "aot_eager", marks=pytest.mark.soak),
    ],
)
def test_other_worlds(ranks: int, transport: str, compiler: str) -> None:
    failures = run_checks(CHECKS, ranks, {"FERRULE_TRANSPORT": transport, "COMPILE_BACKEND": compiler})
    assert not any(failures.values()), "\n".join(
        f"{check}: {failure}" for check, failure in failures.items() if failure
    )
