"""Pieces of weights between ranks that are threads, over real groups."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_threads import on_all, thread_groups
from safetensors.numpy import load_file, save_file

from ferrule.engine.shards import transfer as module
from ferrule.engine.shards.pieces import Piece, wanted
from ferrule.engine.shards.store import Store
from ferrule.engine.shards.transfer import Receiver, Wire, transfer
from ferrule.engine.shards.weight_files import Reader, read_layout
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import EngineError, FerruleError

SHAPE = (30, 40)
TENSORS = {f"t{number}": np.random.default_rng(number).standard_normal(SHAPE) for number in range(8)}


class Noisy:
    """A group that flips a bit of what it receives, as often as ``times`` says."""

    def __init__(self, group: Any, times: int) -> None:
        self.group, self.times = group, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def all_to_all(self, x: Any, out: Any, **options: Any) -> Any:
        work = self.group.all_to_all(x, out, **options)
        work.wait()
        if len(out) and self.times:
            self.times -= 1
            out[len(out) // 2] ^= 4
        return work


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file(TENSORS, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    monkeypatch.setattr(module, "ROUND_BYTES", 10_000)  # several rounds
    return directory


def columns(part: int) -> list[Piece]:
    cut = Slicing(1, 40, ((20 * part, 20 * part + 20),))
    return [piece for key in TENSORS for piece in wanted(key, SHAPE, 8, cut)]


def run(model: Path, root: Path, noise: int = 0) -> tuple[list[int], list[Store]]:
    """Ranks 0 and 3 have the files; 1 and 2 receive half of each tensor. Bytes received by rank, and the stores."""
    layout = read_layout(model)
    wire = Wire(layout.places())
    stores = [Store(root, f"of-{part}") for part in range(2)]
    for store in stores:
        store.open()
        store.lay_out(layout)
        store.check(lambda done, total: None)
    groups = thread_groups(4)
    together = threading.Barrier(len(groups), timeout=60)

    def body(group: Any) -> int:
        if group.rank in (0, 3):
            with Reader(model, wire.places) as reader:
                transfer(group, wire, None, reader, lambda sent: None)
            together.wait()
            return 0
        store = stores[group.rank - 1]
        missing = store.missing(columns(group.rank - 1))
        receiver = Receiver(wire, missing, (0, 3), store, lambda done, total: None)
        transfer(Noisy(group, noise if group.rank == 2 else 0), wire, receiver, None, lambda sent: None)  # type: ignore[arg-type]
        store.finish()
        together.wait()
        return receiver.received

    causes: list[EngineError] = []

    def noted(group: Any) -> int:
        try:
            return body(group)
        except EngineError as error:
            causes.append(error)  # before the others hear of it, and raise errors of their own
            raise

    try:
        return on_all(groups, noted), stores
    except FerruleError as error:
        raise causes[0] if causes else error from None
    finally:
        together.abort()
        for group in groups:
            group.abort()
            group.close()
        for store in stores:
            store.close()


@pytest.mark.parametrize("noise", [0, 2])
def test_each_receives_its_part_and_a_damaged_byte_is_sent_again(noise: int, model: Path, tmp_path: Path) -> None:
    received, stores = run(model, tmp_path / "root", noise)
    for part, store in enumerate(stores):
        found = load_file(store.path / "model.safetensors")
        for key, whole in TENSORS.items():
            assert np.array_equal(found[key][:, 20 * part : 20 * part + 20], whole[:, 20 * part : 20 * part + 20])
            assert not found[key][:, 20 - 20 * part : 40 - 20 * part].any()
        store.check(lambda done, total: None)
        assert store.missing(columns(part)) == []
    share = 8 * 30 * 20 * 8
    assert share <= received[1] < 1.01 * share
    assert received[2] >= received[1] + noise * 30 * 20 * 8


def test_a_piece_that_always_arrives_damaged_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"t\d of model.safetensors arrived damaged from rank [03] on rank 2, 4 times"
    ):
        run(model, tmp_path / "root", noise=1000)
