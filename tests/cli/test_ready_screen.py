"""What `ferrule serve` says of a model's ranks once it is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from rich.console import Console

from ferrule.cli.display import show_ready
from ferrule.model import Share, read_model
from ferrule.plan import Plan, Stage, shares_by


def shown(engine: FakeEngine) -> str:
    console = Console(width=140)
    with console.capture() as told:
        show_ready(console, engine, "127.0.0.1", 8420, with_key=False)
    return told.get()


@pytest.mark.parametrize(
    ("field", "reason", "said"),
    [
        ("unshared", "layers with a recurrent state", "no prefix cache: layers with a recurrent state"),
        ("unguessed", "layers with a recurrent state", "no speculation: layers with a recurrent state"),
        (
            "streamed",
            "3 of 4 layers into 2 slots from a disk of 2 GiB/s",
            "rank 0 reads weights with every token: 3 of 4 layers",
        ),
    ],
)
def test_what_ranks_cannot_do_or_read_from_disk_is_said_with_the_reason(field: str, reason: str, said: str) -> None:
    engine = FakeEngine()
    for given in (None, reason):
        engine.ranks = tuple(replace(each, **{field: given}) for each in engine.ranks)
        assert shown(engine).count(said) == (given is not None)


def test_stages_of_different_width_are_shown_by_their_parts() -> None:
    engine = FakeEngine()
    shares = shares_by(read_model("llama-3.2-3b"), (3.0, 1.0))
    engine.plan = Plan((Stage(("a", "b"), 0, 4, shares), Stage(("c",), 4, 8, (Share(),)))).because("")
    told = shown(engine)
    assert "hybrid: 8 layers; 2 pipeline stages chosen by the planner, of 2 and 1 ranks" in told
    assert "75%" in told
