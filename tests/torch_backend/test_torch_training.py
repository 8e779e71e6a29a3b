"""Training with what torch brings along, on the backend ferrule."""

from __future__ import annotations

import pytest
import training_checks
from torch_ranks import checks_of, run_checks

pytestmark = pytest.mark.slow

CHECKS = checks_of(training_checks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_training(ranks: int) -> None:
    failures = run_checks(CHECKS, ranks)
    assert not any(failures.values()), "\n".join(f"{check}: {text}" for check, text in failures.items() if text)
