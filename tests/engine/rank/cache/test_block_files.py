"""Blocks on disk are those that were written, or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrule.engine.rank.cache import disk
from ferrule.engine.rank.cache.disk import BlockFiles, make_room

SIZE = 1000
KEYS = [bytes([number]) * 16 for number in range(4)]
DATA = [bytes([number]) * SIZE for number in range(4)]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlockFiles]:
    found = BlockFiles(tmp_path / "rank", SIZE)
    yield found
    found.close()


def test_what_is_written_is_read_by_this_user_alone(files: BlockFiles) -> None:
    for key, data in zip(KEYS, DATA, strict=True):
        files.write(key, data)
    assert [files.read(key) for key in KEYS] == DATA, "also what waits to be written"
    files.forget(KEYS[0])
    assert files.read(KEYS[0]) is None
    files.flush()
    assert [files.read(key) for key in KEYS] == [None, *DATA[1:]]
    assert sorted(files.found()) == KEYS[1:]
    assert {file.stat().st_mode & 0o777 for file in files.path.iterdir()} == {0o600}
    assert files.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("wrong", [b"", DATA[1][:-1], DATA[1] + b"x", DATA[2], b"x" * (SIZE + 32)])
def test_what_is_not_as_it_was_written_is_deleted(files: BlockFiles, wrong: bytes) -> None:
    files.write(KEYS[1], DATA[1])
    files.flush()
    file = files.path / KEYS[1].hex()
    head = file.read_bytes()[:-SIZE]
    file.write_bytes(wrong if len(wrong) > SIZE + 1 else head + wrong)
    assert files.read(KEYS[1]) is None
    assert not file.exists()


def test_a_block_under_the_name_of_another_is_none(files: BlockFiles) -> None:
    files.write(KEYS[1], DATA[1])
    files.flush()
    (files.path / KEYS[1].hex()).rename(files.path / KEYS[2].hex())
    assert files.read(KEYS[2]) is None


def test_a_start_finds_blocks_by_their_use_and_deletes_the_rest(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, SIZE)
    for number in (0, 1, 2):
        files.write(KEYS[number], DATA[number])
    files.close()
    for number, when in ((0, 30), (1, 10), (2, 20)):
        os.utime(tmp_path / KEYS[number].hex(), (when, when))
    (tmp_path / KEYS[3].hex()).write_bytes(b"cut short")
    (tmp_path / f"{KEYS[3].hex()}.new").write_bytes(b"of a process that was killed")
    again = BlockFiles(tmp_path, SIZE)
    assert again.found() == [KEYS[1], KEYS[2], KEYS[0]]
    assert len(list(tmp_path.iterdir())) == 3 + 1, "the lock"
    again.close()


def test_two_ranks_do_not_use_one_directory(files: BlockFiles) -> None:
    with pytest.raises(BlockingIOError):
        BlockFiles(files.path, SIZE)


def test_a_disk_that_is_slow_or_full_takes_no_memory(files: BlockFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "QUEUE_BYTES", 2 * SIZE)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files, "_write", full)
    with files._changed:  # nothing is written meanwhile
        for key, data in zip(KEYS, DATA, strict=True):
            files.write(key, data)
        assert len(files._waiting) == 2
    files.flush()
    assert [files.read(key) for key in KEYS] == [None] * 4


def test_other_models_make_room_unless_they_run(tmp_path: Path) -> None:
    old, running, mine = (BlockFiles(tmp_path / name, SIZE) for name in ("old", "running", "mine"))
    for files in (old, running, mine):
        for key, data in zip(KEYS, DATA, strict=True):
            files.write(key, data)
        files.flush()
    old.close()
    make_room(tmp_path, mine.path, 20 * SIZE)
    assert len(list(tmp_path.iterdir())) == 3
    make_room(tmp_path, mine.path, 4 * SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "running"]
    make_room(tmp_path / "not there", mine.path, 0)
    running.close()
    mine.close()
