"""Files of a model that are sent to the hosts of its ranks: when, and what is said where they cannot be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ferrule.agent.placement import ranks as cluster_ranks
from ferrule.agent.placement.ranks import ClusterRanks, FileSource
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.records import Member
from ferrule.engine.options import RankOptions
from ferrule.errors import EngineError, ModelUnavailable
from ferrule.model import read_model
from ferrule.plan import make_plan

HOME = cast(ClusterHome, None)
A, B = (Member(name * 32, f"host{name}", 8421, (), "0.1.0", "3.11") for name in "ab")
OPTIONS = RankOptions("/models/x", "auto", make_plan(read_model("llama-3.1-8b")), 1, 2048, 8, 512, ())


def test_files_are_sent_once_where_no_rank_is_on_the_host_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[list[str], str]] = []

    class Processes:
        def __init__(self, home: object, members: Any, module: str) -> None:
            sent.append(([each.name for each in members], module))

        async def start(self, options: RankOptions, threads: Any) -> None:
            assert len(threads) == 2

        async def finished(self) -> None:
            pass

        async def stop(self, grace: float) -> None:
            pass

    monkeypatch.setattr(cluster_ranks, "ClusterRanks", Processes)
    source = FileSource(HOME, A)

    async def scene() -> None:
        await source.send([A], OPTIONS)
        await source.send([A, B], OPTIONS)
        assert sent == []
        for _ in range(2):
            await source.send([B], OPTIONS)

    asyncio.run(scene())
    assert sent == [(["hostb", "hosta"], "ferrule.engine.shards.sending")]


@pytest.mark.parametrize(
    ("code", "tail", "error", "words"),
    [
        (6, "its disk has 1 MiB free", EngineError, r"\(hostb: its disk has 1 MiB free\)"),
        (5, "", ModelUnavailable, "ended with status 5"),
        (-9, "", ModelUnavailable, "ended with status -9"),
        (None, "", ModelUnavailable, "hosta was lost while"),
    ],
)
def test_why_files_could_not_be_sent(
    code: int | None, tail: str, error: type[EngineError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        processes = ClusterRanks(HOME, (B, A))
        told: asyncio.Queue[Any] = asyncio.Queue()
        life = cast(Any, SimpleNamespace(receive=told.get))
        processes._ended[A.host] = asyncio.Event()
        listening = asyncio.create_task(processes._listen(A.host, life))
        waiting = asyncio.create_task(processes.finished())
        await asyncio.sleep(0)
        if code is not None:
            told.put_nowait(cluster_ranks.RankExited(1, 0, ""))
            told.put_nowait(cluster_ranks.RankExited(0, code, tail))
        told.put_nowait(None)
        with pytest.raises(EngineError, match=words) as raised:
            await waiting
        assert type(raised.value) is error
        await listening

    asyncio.run(scene())
