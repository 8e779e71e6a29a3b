"""The file of a rank's matrices: written once, refused where it is not as it was, deleted when others need room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from ferrule.engine.rank.stream import matrix_file
from ferrule.engine.rank.stream.disk import open_fastest
from ferrule.engine.rank.stream.matrix_file import MatrixFile, make_room
from ferrule.engine.weights.matrix import PackedMatrix, pack_numbers
from ferrule.errors import EngineError

X = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))


def matrix(seed: int) -> PackedMatrix:
    return pack_numbers(torch.randn(48, 40, generator=torch.Generator().manual_seed(seed)), torch.float32)


def written(path: Path) -> MatrixFile:
    file = MatrixFile(path, 1 << 14)
    for seed in range(3):
        assert file.kept(f"m{seed}", torch.float32) is None
        file.keep(f"m{seed}", matrix(seed))
    file.finish()
    return file


def check(file: MatrixFile) -> None:
    for seed in range(3):
        found = file.kept(f"m{seed}", torch.float32)
        assert found is not None
        file.load(f"m{seed}", found)
        assert torch.equal(found.multiply(X), matrix(seed).multiply(X))
        assert file.extent(f"m{seed}")[0] % 4096 == 0


def test_matrices_are_those_that_were_written(tmp_path: Path) -> None:
    file = written(tmp_path / "one")
    check(file)
    again = MatrixFile(tmp_path / "one", 1 << 14)  # both read it
    check(again)
    descriptor, rate, how = again.open()
    assert rate > 0
    assert how in ("past the page cache", "through the page cache")
    os.close(descriptor)
    file.close()
    again.close()
    assert oct((tmp_path / "one" / "weights").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("damage", ["copied", "changed", "short", "no index", "half"])
def test_what_is_not_as_it_was_written_is_written_anew(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "one"
    written(path).close()
    data = (path / "weights").read_bytes()
    if damage == "copied":
        shutil.copy(path / "weights", path / "other")
        (path / "other").replace(path / "weights")
    elif damage == "changed":
        (path / "weights").write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    elif damage == "short":
        os.truncate(path / "weights", 4096)
    elif damage == "no index":
        (path / "index.json").unlink()
    else:
        (path / "index.json").write_text((path / "index.json").read_text()[:-9])
    file = MatrixFile(path, 1 << 14)
    assert ("m0" in file) == (damage == "copied"), "another time of change is no other content"
    file.close()
    if damage != "copied":
        check(written(path))


def test_a_full_disk_is_told_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"has no room for .*FERRULE_MODEL_CACHE"):
        MatrixFile(tmp_path / "one", 8 << 60)
    file = MatrixFile(tmp_path / "two", 1 << 14)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(EngineError, match="free some, or set FERRULE_MODEL_CACHE"):
        file.keep("m0", matrix(0))
    file.close()
    (tmp_path / "three").write_text("")
    with pytest.raises(EngineError, match="cannot be used"):
        MatrixFile(tmp_path / "three", 1 << 14)


def test_others_make_room_unless_they_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("old", "used", "new"):
        written(tmp_path / name).close()
    used, own = MatrixFile(tmp_path / "used", 1 << 14), tmp_path / "own"
    own.mkdir()
    for number, name in enumerate(("used", "old", "new")):
        os.utime(tmp_path / name, (number, number))
    make_room(own, 1 << 20)
    assert {each.name for each in tmp_path.iterdir()} == {"old", "used", "new", "own"}
    size = sum(each.stat().st_size for each in (tmp_path / "old").iterdir())
    free = [1000, 1000, 1000 + 3 * size]

    class Disk:
        @property
        def free(self) -> int:
            return free.pop(0) if len(free) > 1 else free[0]

    monkeypatch.setattr(matrix_file.shutil, "disk_usage", lambda path: Disk())
    make_room(own, 1 + size)
    assert {each.name for each in tmp_path.iterdir()} == {"used", "new", "own"}
    used.close()


def test_a_file_system_without_direct_reads_is_read_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 16))
    monkeypatch.setattr("ferrule.engine.rank.stream.disk.open_direct", lambda file: None)
    descriptor, rate, how = open_fastest(file, 1 << 16)
    os.close(descriptor)
    assert rate > 0
    assert how == "through the page cache"
