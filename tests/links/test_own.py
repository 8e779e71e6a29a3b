"""Answers that a live tree gives without starting a program."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import grp
import importlib
import struct
import sys
from pathlib import Path

import pytest

from ferrule.links import own
from ferrule.links.tree import LiveTree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these requests")


def test_pause_frames_are_told_as_ethtool_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(_: object, number: int, request: bytes) -> None:
        name, address = struct.unpack_from("16sP", request)
        told = (ctypes.c_uint32 * 4).from_address(address)
        assert (number, name.rstrip(b"\0"), told[0]) == (0x8946, b"cable0", 0x12)
        told[1:] = [0, 1, 0]

    monkeypatch.setattr(fcntl, "ioctl", kernel)
    told = LiveTree().run("ethtool -a cable0")
    assert told == "Pause parameters for cable0:\nAutonegotiate:\toff\nRX:\ton\nTX:\toff\n"


@pytest.mark.parametrize("name", ["lo", "none-such0", "a-name-that-is-too-long", ""])
def test_what_has_no_pause_frames_says_so(name: str) -> None:
    with pytest.raises(OSError, match=r"not supported|No such device|no such interface") as told:
        own.pause(name)
    assert told.value.errno in (errno.EOPNOTSUPP, errno.ENODEV)


def test_other_commands_are_programs() -> None:
    assert own.own_command("ethtool") is None
    assert own.own_command("ferrule version --json") is None


def test_device_nodes_are_told_with_their_group(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    for name in ("dri/renderD128", "dri/card0", "kfd", "nvidia0", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o660)
    told = [line.split() for line in own.device_nodes(tmp_path).splitlines()]
    assert [(words[0], words[1], words[3]) for words in told] == [
        ("/dev/dri/renderD128", "660", "usable"),
        ("/dev/kfd", "660", "usable"),
        ("/dev/nvidia0", "660", "usable"),
    ]
    assert {words[2] for words in told} == {grp.getgrgid(tmp_path.stat().st_gid).gr_name}


def test_the_torch_is_told_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(FileNotFoundError, match="not installed"):
        LiveTree().run(own.TORCH)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.10.0+rocm7.1'\ncuda: Optional[str] = None\nhip: str = '7.1'\n"
    )
    importlib.invalidate_caches()
    assert LiveTree().run(own.TORCH) == "version 2.10.0+rocm7.1\nhip 7.1\n"
