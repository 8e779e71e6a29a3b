"""Faults of a model that is served with all features, under mixed load: no request is lost, no token is another one,
and the ranks that a fault leaves keep their processes.

FERRULE_CHAOS_FAULTS: how many, over all servers. FERRULE_CHAOS_SEED: which; a random one unless given.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest
from served_load import Load, Question, answered, questions
from served_plan import CABLES, SETUPS, Fault, Setup, Strike, plan_strikes
from served_player import Played, Player
from served_server import Served
from tiny_models import make

from ferrule.bench.random_model import save_tokenizer
from ferrule.lab import obstacle

CLIENTS = 5
FAULTS = 10
"""Of one server."""
APART = {"auto": 1e-3, "int8": 0.02}
"""By which tokens must be likelier than others: sums in another order are rounded, and quantised caches magnify it."""
VOCABULARY = {"demo": 3072, "mixture": 509}


def model_of(setup: Setup, folder: Path) -> str:
    if setup.model == "demo":
        return "demo"
    directory = folder / "mixture"
    if not directory.is_dir():
        make("qwen3_moe", directory, vocab_size=VOCABULARY["mixture"], max_position_embeddings=1024)
        save_tokenizer(directory, VOCABULARY["mixture"])
    return str(directory)


async def right_answers(setup: Setup, folder: Path, number: int) -> list[Question]:
    """Those that one rank gives, of questions whose answers do not depend on rounding."""
    with Served(folder / "reference", {**setup.reference, "model": model_of(setup, folder)}) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            found = await answered(client, questions(VOCABULARY[setup.model], number))
    clear = [each for each in found if each.apart > APART[setup.options.get("kv_cache", "auto")]]
    assert len(clear) > number / 3, f"of {number} questions {len(clear)} have answers that do not depend on rounding"
    return clear


async def play(
    setup: Setup,
    strikes: Sequence[Strike],
    folder: Path,
    played: Played,
    asked: list[Question],
    seed: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    model = model_of(setup, folder.parent)
    cables = CABLES if setup.hosts and obstacle() is None else 0
    with Served(folder / setup.name, {**setup.options, "model": model}, cables) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=None) as client:
            player = Player(setup.name, served, Load(client, asked, seed), played, seed, say)
            await player.play(list(strikes), CLIENTS)


def planned(setup: Setup, seed: int, server: int, count: int, only: Sequence[Fault] = ()) -> list[Strike]:
    cables = setup.hosts and obstacle() is None
    return plan_strikes(seed, server, count, setup.ranks, cables=cables, only=only)


@pytest.mark.slow
def test_answers_are_right_and_processes_stay_over_some_faults(tmp_path: Path) -> None:
    setup, played = SETUPS[0], Played()
    strikes = planned(setup, 1, 0, 2, ("stop", "block"))
    asked = asyncio.run(right_answers(setup, tmp_path, 10))
    asyncio.run(play(setup, strikes, tmp_path / "served", played, asked))
    assert not played.problems, "\n".join([str(played), *played.problems])
    assert len(played.back) == 2
    assert played.damaged > 0
    assert played.done > CLIENTS


@pytest.mark.soak
def test_served_chaos(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = int(os.environ.get("FERRULE_CHAOS_SEED") or secrets.randbelow(1 << 31))
    count = int(os.environ.get("FERRULE_CHAOS_FAULTS") or 50)
    terminal = request.config.get_terminal_writer()
    terminal.line(f"\nchaos seed {seed}")
    total = Played()
    asked: dict[str, list[Question]] = {}
    for server in range(math.ceil(count / FAULTS)):
        setup = SETUPS[server % len(SETUPS)]
        played = Played()
        strikes = planned(setup, seed, server, min(FAULTS, count - server * FAULTS))
        if setup.name not in asked:
            asked[setup.name] = asyncio.run(right_answers(setup, tmp_path, 30))
        asyncio.run(play(setup, strikes, tmp_path / str(server), played, asked[setup.name], seed, terminal.line))
        terminal.line(f"{setup.name}: {played}")
        total = total.joined(played)
    terminal.line(str(total))
    assert not total.problems, "\n".join([str(total), *total.problems])


def test_strikes_follow_from_the_seed_alone_and_no_server_sees_too_many_alike() -> None:
    for server in range(20):
        strikes = plan_strikes(7, server, FAULTS, 3, cables=True)
        assert strikes == plan_strikes(7, server, FAULTS, 3, cables=True)
        assert all(strike.victim != strike.other for strike in strikes)
    found = {strike.fault for server in range(20) for strike in plan_strikes(7, server, FAULTS, 3, cables=True)}
    assert len(found) == 10
    assert not {"rail", "dark rail", "cut"} & {each.fault for each in plan_strikes(7, 0, FAULTS, 3, cables=False)}
