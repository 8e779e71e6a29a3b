"""Random faults, one after the other, and always the same demands: nothing hangs, no result is wrong, nothing is left
behind, and the survivors know which rank did it.

FERRULE_CHAOS_FAULTS: how many. FERRULE_CHAOS_SEED: which; a random one unless given. FERRULE_CHAOS_ROUND: only that
one, to look at it again, or as A-B all from A to B.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from chaos_arena import Arena
from chaos_plan import plan_round
from chaos_rounds import Chaos


@pytest.mark.soak
@pytest.mark.usefixtures("emulated_hosts")
def test_chaos(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    chaos = Chaos(int(os.environ.get("FERRULE_CHAOS_SEED") or secrets.randbelow(1 << 31)))
    terminal = request.config.get_terminal_writer()
    terminal.line(f"\nchaos seed {chaos.seed}")
    first, _, last = os.environ.get("FERRULE_CHAOS_ROUND", "").partition("-")
    count = int(os.environ.get("FERRULE_CHAOS_FAULTS") or 100)
    numbers = range(int(first), int(last or first) + 1) if first else range(count)
    with Arena(tmp_path) as arena:
        for number in numbers:
            chaos.play(arena, number)
    terminal.line(str(chaos))
    assert not chaos.violations, "\n".join([str(chaos), *chaos.violations])


def test_rounds_follow_from_the_seed_alone() -> None:
    assert [plan_round(7, number) for number in range(50)] == [plan_round(7, number) for number in range(50)]
    assert len({plan_round(7, number).fault for number in range(200)}) == 13
