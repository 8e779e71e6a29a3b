"""A host without the model's files receives its part of them, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tiny_adapters import adapted, greedy, make_adapter

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine import EngineOptions, Progress, RankInfo, SamplingParams, start
from ferrule.engine.adapters import identity_of
from ferrule.engine.options import Adapter
from ferrule.engine.shards.ledger import Ledger
from ferrule.engine.shards.pieces import Piece
from ferrule.engine.shards.store import LEDGER
from ferrule.engine.shards.weight_files import read_layout
from ferrule.errors import FerruleError
from ferrule.lab import Lab, chain

pytestmark = pytest.mark.slow

SHAPE = RandomModel("random", hidden=512, intermediate=1536, layers=4, heads=8, key_value_heads=4, vocabulary=8000)
PROMPT = list(range(3, 20))
RATE = 40e6
"""Bits per second of the cable: the transfer takes seconds, so that it can be cut short."""


class Hosts(Lab):
    """Host 0 has the model, host 1 has not; each has a cache of its own."""

    def __init__(self, homes: Path) -> None:
        super().__init__(chain(2, rate=RATE))
        self.homes = homes

    def env(self, host: int) -> dict[str, str]:
        home = self.homes / str(host)
        own = {"FERRULE_MODEL_PATH": str(home / "models")} if host else {}
        return super().env(host) | {"FERRULE_MODEL_CACHE": str(home / "shards"), "XDG_CACHE_HOME": str(home)} | own


def options(model: Path, *adapters: Adapter) -> EngineOptions:
    return EngineOptions(str(model), tensor=2, dtype="float32", threads=1, max_context=512, adapters=adapters)


async def served(model: Path, lab: Lab, *adapters: Adapter) -> tuple[list[int], tuple[RankInfo, ...]]:
    """The answer with the last of ``adapters``, if there is one."""
    engine = await start(options(model, *adapters), lab=lab)
    try:
        name = adapters[-1].name if adapters else None
        params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, adapter=name)
        return [token.id async for token in engine.generate(PROMPT, params)], engine.ranks
    finally:
        await engine.close()


async def killed(model: Path, lab: Lab) -> None:
    """A start in which host 1 dies when it has received two fifths of its part."""

    def on_progress(progress: Progress) -> None:
        if progress.phase == "receive" and progress.done > 0.4 * progress.total:
            for process in lab.processes(1):
                os.kill(process, signal.SIGKILL)

    with pytest.raises(FerruleError):
        await start(options(model), on_progress, lab=lab)


def test_a_part_is_received_once_goes_on_after_a_kill_and_is_mended(
    tmp_path: Path, emulated_hosts: None, record_property: pytest.RecordProperty
) -> None:
    model = save_random_model(tmp_path / "model", SHAPE)
    places = read_layout(model).places()
    with Hosts(tmp_path / "hosts") as lab:
        asyncio.run(killed(model, lab))
        (store,) = (tmp_path / "hosts/1/shards").iterdir()
        ledger = Ledger.read(store / LEDGER)
        assert ledger is not None
        kept = sum(piece.bytes(places[piece.key].view(piece.dim)) for piece in ledger.pieces)
        assert kept > 0
        tokens, ranks = asyncio.run(served(model, lab))
        share = ranks[1].weight_bytes // 2  # held as float32, stored as bfloat16
        assert tokens == greedy(adapted(model, None), PROMPT, 6)
        assert ranks[0].received_bytes == 0
        record_property(
            "shard bytes, bytes kept from before the kill, received after", (share, kept, ranks[1].received_bytes)
        )
        assert abs(kept + ranks[1].received_bytes - share) < 0.01 * share
        assert allocated(store) < 0.65 * sum(place.bytes for place in places.values())  # short rows share blocks

        ledger = Ledger.read(store / LEDGER)
        assert ledger is not None
        piece = max(ledger.pieces, key=lambda piece: piece.bytes(places[piece.key].view(piece.dim)))
        damage(store, piece)
        poet = make_adapter(model, tmp_path / "poet")
        tokens, ranks = asyncio.run(served(model, lab, Adapter("poet", str(poet))))
        assert tokens == greedy(adapted(model, poet), PROMPT, 6)
        (kept_adapter,) = (tmp_path / "hosts/1/shards/adapters").iterdir()
        assert identity_of(kept_adapter) == kept_adapter.name
        assert not (tmp_path / "hosts/0/shards/adapters").exists(), "it has the files"
        size = piece.bytes(places[piece.key].view(piece.dim))
        assert size <= ranks[1].received_bytes < 1.01 * size + 1000


def allocated(directory: Path) -> int:
    """Bytes that its files take on the disk."""
    return sum(file.stat().st_blocks * 512 for file in directory.iterdir())


def damage(store: Path, piece: Piece) -> None:
    place = read_layout(store).places()[piece.key]
    (offset, _), *_ = piece.runs(place.view(piece.dim))
    with (store / place.file).open("r+b") as file:
        file.seek(place.offset + offset)
        byte = file.read(1)[0]
        file.seek(place.offset + offset)
        file.write(bytes([byte ^ 8]))
