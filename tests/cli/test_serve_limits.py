"""What `ferrule serve` takes of its prefix cache and of how long requests wait, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from rich.console import Console
from typer.testing import CliRunner

from ferrule.cli.display import show_ready
from ferrule.cli.main import app
from ferrule.cli.serving.options import prefix_disk_of
from ferrule.engine import EngineOptions
from ferrule.errors import ConfigError


def test_the_disk_is_used_where_a_size_is_given() -> None:
    assert [prefix_disk_of(size) for size in (None, "off", "8GiB")] == [0, 0, 8 << 30]
    with pytest.raises(ConfigError, match="is not a size"):
        prefix_disk_of("much")
    with pytest.raises(ConfigError, match="--no-prefix-cache"):
        EngineOptions("demo", prefix_cache=False, prefix_disk=1)


@pytest.mark.parametrize("reason", [None, "layers with a recurrent state"])
def test_a_model_without_one_is_served_with_the_reason(reason: str | None) -> None:
    engine = FakeEngine()
    engine.ranks = tuple(replace(each, unshared=reason) for each in engine.ranks)
    console = Console(width=120)
    with console.capture() as told:
        show_ready(console, engine, "127.0.0.1", 8420, with_key=False)
    assert told.get().count("no prefix cache: layers with a recurrent state") == (reason is not None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--inter-token-limit", "1x"), "give more than 1x"),
        (("--max-queue-time", "0"), "give off for no limit"),
    ],
)
def test_limits_of_waiting_that_mean_nothing_are_refused_first(flags: tuple[str, str], said: str) -> None:
    refused = CliRunner().invoke(app, ["serve", "demo", "--here", *flags])
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())
