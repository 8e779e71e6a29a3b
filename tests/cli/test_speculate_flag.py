"""What `ferrule serve` takes and says of speculation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from rich.console import Console

from ferrule.agent.models.server import options_of
from ferrule.cli.display import show_ready
from ferrule.cluster.desired import DesiredModel
from ferrule.engine import EngineOptions
from ferrule.engine.speculation import GUESSED, parse_speculation
from ferrule.errors import ConfigError


def test_the_most_tokens_may_be_said() -> None:
    assert [parse_speculation(text) for text in ("off", "ngram", "ngram:3")] == [0, GUESSED, 3]
    for text in ("", "on", "ngram:", "ngram:0", "ngram:33", "ngram:x", "off:2"):
        with pytest.raises(ConfigError, match="none of off, ngram and ngram:K"):
            parse_speculation(text)
    with pytest.raises(ConfigError, match="from 1 to 32"):
        EngineOptions("demo", speculate="ngram:99")


def test_a_cluster_passes_it_on() -> None:
    desired = DesiredModel(model="demo", host="a" * 32, owner="a" * 32, speculate="ngram:4")
    assert options_of(desired, "demo").speculate == "ngram:4"
    assert options_of(replace(desired, speculate=None), "demo").speculate == "off"


@pytest.mark.parametrize("reason", [None, "layers with a recurrent state"])
def test_a_model_that_cannot_is_served_with_the_reason(reason: str | None) -> None:
    engine = FakeEngine()
    engine.ranks = tuple(replace(each, unguessed=reason) for each in engine.ranks)
    console = Console(width=120)
    with console.capture() as told:
        show_ready(console, engine, "127.0.0.1", 8420, with_key=False)
    assert told.get().count("no speculation: layers with a recurrent state") == (reason is not None)
