"""What `ferrule serve` takes and says of weights that are read from disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from rich.console import Console

from ferrule.cli.display import show_ready
from ferrule.cli.serving.options import stream_weights_of
from ferrule.engine import EngineOptions
from ferrule.errors import ConfigError


def test_weights_are_streamed_where_the_user_says_so() -> None:
    assert [stream_weights_of(size) for size in (None, "off", "auto", "8GiB")] == [None, None, 0, 8 << 30]
    with pytest.raises(ConfigError, match="is not a size"):
        stream_weights_of("some")
    with pytest.raises(ConfigError, match="--stream-weights"):
        EngineOptions("demo", stream_weights=-1)


@pytest.mark.parametrize("streamed", [None, "3 of 4 layers into 2 slots from a disk of 2 GiB/s"])
def test_what_is_read_is_said_at_the_start(streamed: str | None) -> None:
    engine = FakeEngine()
    engine.ranks = tuple(replace(each, streamed=streamed) for each in engine.ranks)
    console = Console(width=140)
    with console.capture() as told:
        show_ready(console, engine, "127.0.0.1", 8420, with_key=False)
    assert ("rank 0 reads weights with every token: 3 of 4 layers" in told.get()) == (streamed is not None)
