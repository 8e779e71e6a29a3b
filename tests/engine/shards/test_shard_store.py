"""Bytes of a file that a slice is, the part of them that a store holds, and detection of damage."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ferrule.engine.shards import store as store_module
from ferrule.engine.shards.ledger import Ledger, digest
from ferrule.engine.shards.pieces import Coverage, Piece, cut_up, view_of, wanted, without
from ferrule.engine.shards.store import LEDGER, Store
from ferrule.engine.shards.weight_files import Layout, Reader, identity, read_layout
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import EngineError, ModelError

SHAPE = (6, 8, 10)
WHOLE = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
HALF = {name: Slicing(1, 8, ((4, 8),)) for name in ("a", "b")}


def bytes_of(piece: Piece, data: bytes) -> bytes:
    view = view_of(SHAPE, 2, piece.dim)
    return b"".join(data[start : start + length] for start, length in piece.runs(view))


@settings(max_examples=40)
@given(st.integers(0, 2), st.data())
def test_the_pieces_of_a_slice_are_its_bytes(dim: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, SHAPE[dim] - 1))
    stop = data.draw(st.integers(start + 1, SHAPE[dim]))
    limit = data.draw(st.integers(1, 200))
    (piece,) = wanted("a", SHAPE, 2, Slicing(dim, SHAPE[dim], ((start, stop),)))
    view = view_of(SHAPE, 2, piece.dim)
    parts = cut_up(piece, view, limit)
    expected = WHOLE.take(range(start, stop), axis=dim)
    assert sum(part.bytes(view) for part in parts) == piece.bytes(view) == expected.nbytes
    assert all(part.bytes(view) <= max(limit, view.inner) for part in parts)
    assert bytes_of(piece, WHOLE.tobytes()) == expected.tobytes()
    there = Coverage(parts)
    assert there.missing(piece, SHAPE, 2) == []


@settings(max_examples=40)
@given(*[st.tuples(*[st.integers(0, 5)] * 4) for _ in range(2)])
def test_what_is_left_of_a_rectangle(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    def cells(piece: Piece) -> set[tuple[int, int]]:
        return {(row, at) for row in range(piece.first, piece.last) for at in range(piece.start, piece.stop)}

    piece, hole = (Piece("a", 1, a, a + b + 1, c, c + d + 1) for a, b, c, d in (one, other))
    left = without(piece, hole)
    assert set().union(*map(cells, left)) == cells(piece) - cells(hole)
    assert sum(len(cells(part)) for part in left) == len(cells(piece) - cells(hole))


def test_a_whole_tensor_holds_every_slice_of_it() -> None:
    (column,) = wanted("a", SHAPE, 2, Slicing(2, 10, ((3, 5),)))
    (whole,) = wanted("a", SHAPE, 2, None)
    assert Coverage([whole]).missing(column, SHAPE, 2) == []
    parts = wanted("a", SHAPE, 2, Slicing(2, 10, ((0, 3), (5, 10))))
    assert Coverage(parts).missing(column, SHAPE, 2) == [column]
    assert Coverage([*parts, column]).missing(whole, SHAPE, 2) == []
    assert Coverage(parts).missing(whole, SHAPE, 2) == [whole]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file({"a": WHOLE, "b": WHOLE + 1, "scalar": np.array(3.0, np.float32)}, directory / "model.safetensors")
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return directory


def opened(root: Path, model: Path) -> Store:
    store = Store(root, "m")
    store.open()
    if not store.ready():
        store.lay_out(read_layout(model))
    return store


def fill(store: Store, model: Path, pieces: list[Piece]) -> None:
    with Reader(model, read_layout(model).places()) as reader:
        for piece in pieces:
            data = reader.read(piece)
            store.write(piece, memoryview(data), digest(data))


def halves() -> list[Piece]:
    return [piece for name, cut in HALF.items() for piece in wanted(name, SHAPE, 2, cut)]


def ignore(done: int, total: int) -> None:
    pass


def test_a_store_holds_what_was_written_and_nothing_else(tmp_path: Path, model: Path) -> None:
    store = opened(tmp_path / "root", model)
    store.check(ignore)
    assert store.missing([*halves(), *halves()]) == halves()
    fill(store, model, halves())
    store.finish()
    store.close()
    found = load_file(store.path / "model.safetensors")
    assert np.array_equal(found["a"][:, 4:], WHOLE[:, 4:])
    assert not found["a"][:, :4].any()
    again = opened(tmp_path / "root", model)
    assert again.check(ignore) == 0
    assert again.missing(halves()) == []
    (whole,) = wanted("a", SHAPE, 2, Slicing(1, 8, ((2, 8),)))
    assert again.missing([whole]) == [Piece("a", 1, 0, 6, 2, 4)]
    again.close()


def test_a_damaged_byte_of_a_store_is_found_and_only_its_piece_is_missing(tmp_path: Path, model: Path) -> None:
    store = opened(tmp_path / "root", model)
    store.check(ignore)
    fill(store, model, halves())
    store.finish()
    store.close()
    file = store.path / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    place = read_layout(model).places()["b"]
    damaged[place.offset + 4 * 10 * 2] ^= 1  # the first byte of row 4, which the store holds
    file.write_bytes(damaged)
    store = opened(tmp_path / "root", model)
    assert store.check(ignore) == 1
    assert store.missing(halves()) == halves()[1:]
    store.close()


def test_a_ledger_that_was_torn_while_it_was_written_goes_on(tmp_path: Path) -> None:
    file = tmp_path / LEDGER
    one, two, three = (Piece("a", 0, 0, 1, start, start + 4) for start in (0, 4, 8))
    ledger = Ledger.begin(file, "x")
    ledger.note([(one, b"1"), (two, b"2")])
    file.write_bytes(file.read_bytes()[:-7])
    torn = Ledger.read(file)
    assert torn is not None
    assert torn.pieces == {one: b"1"}
    torn.note([(three, b"3")])
    mended = Ledger.read(file)
    assert mended is not None
    assert mended.pieces == {one: b"1", three: b"3"}
    file.write_text("something else\n")
    assert Ledger.read(file) is None


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "root", model)
    store.check(ignore)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage(10, 9, 1 << 20))
    with pytest.raises(EngineError, match=r"needs .* more .* its disk has 1 MiB free; .*FERRULE_MODEL_CACHE"):
        store.check_room(halves())
    store.check_room([])
    store.close()


def test_a_store_whose_configuration_was_changed_is_laid_out_again(tmp_path: Path, model: Path) -> None:
    store = opened(tmp_path / "root", model)
    assert store.ready()
    (store.path / "config.json").write_text("{}")
    assert not store.ready()
    store.close()


def test_models_that_differ_in_their_weights_only_are_told_apart(tmp_path: Path, model: Path) -> None:
    before = identity(model, read_layout(model))
    assert identity(model, read_layout(model)) == before
    save_file({"a": WHOLE, "b": WHOLE + 2, "scalar": np.array(3.0, np.float32)}, model / "model.safetensors")
    assert identity(model, read_layout(model)) != before


def test_a_layout_survives_the_wire_and_cannot_lead_out_of_its_directory(model: Path) -> None:
    layout = read_layout(model)
    assert Layout.unpack(layout.pack()) == layout
    escaping = Layout({"../config.json": b"{}"}, ())
    with pytest.raises(ModelError, match="leads out"):
        Layout.unpack(escaping.pack())
    assert json.loads(layout.small["config.json"])["model_type"] == "llama"
