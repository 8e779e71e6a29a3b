"""What the process that started the ranks makes of what they say. The launcher is a stand-in; no rank is started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferrule.engine import ranks as module
from ferrule.engine.options import RankOptions
from ferrule.engine.ranks import RankFailure, Ranks
from ferrule.errors import FerruleError
from ferrule.plan import AttentionSpec, LayerSpec, LayerWeights, ModelSpec, Weights, make_plan

LAYER = LayerSpec(LayerWeights(dense=Weights(1, 1)), AttentionSpec("full", 2, 2, 2, 2))
SPEC = ModelSpec(
    name="tiny",
    architecture="Tiny",
    model_type="tiny",
    decoder=(LAYER,) * 2,
    embedding=Weights(1, 1),
    head=Weights(1, 1),
    final=Weights(),
    tied=False,
    hidden_size=4,
    query_heads=2,
    key_value_heads=2,
    vocab_size=10,
    max_context=64,
)


class SpeakingLauncher:
    """Says ``words`` on rank 0's control socket, as if the rank were running."""

    words = b""

    def __init__(self, command: Callable[[int], list[str]], *_: Any, **__: Any) -> None:
        self.command = command

    def start(self) -> None:
        os.write(int(self.command(0)[-1]), self.words)

    def poll(self) -> tuple[int | None, ...]:
        return (None,)

    def stop(self, grace: float) -> None:
        pass


@pytest.mark.parametrize("words", [b"not JSON\n", b'{"event": "progress"}\n'])
def test_a_message_that_cannot_be_taken_is_a_failure_and_no_silence(
    words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpeakingLauncher, "words", words)
    monkeypatch.setattr(module, "LocalLauncher", SpeakingLauncher)
    options = RankOptions("/nowhere", "auto", make_plan(SPEC), 1, 64, 1, 64, ())

    async def failure() -> FerruleError:
        failed: asyncio.Future[FerruleError] = asyncio.get_running_loop().create_future()

        def refuse(rank: int, event: dict[str, Any]) -> None:
            raise KeyError(f"nothing to do with {event}")

        started = Ranks(options, refuse, failed.set_result)
        try:
            await started.connect()
            return await asyncio.wait_for(failed, 10)
        finally:
            await started.stop()

    assert "rank 0: its message could not be taken" in str(asyncio.run(failure()))


def test_the_cause_is_chosen_over_its_consequences(tmp_path: Path) -> None:
    failure = RankFailure()
    failure.report(0, "PeerLost", "rank 1 is gone")
    assert str(failure.cause((5, -9), tmp_path)) == "rank 1 was killed by SIGKILL"
    failure.report(2, "ModelError", "a tensor is missing")
    assert str(failure.cause((5, -9, 3), tmp_path)) == "a tensor is missing"
