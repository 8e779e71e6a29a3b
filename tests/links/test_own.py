"""What a live tree answers without starting a program."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
import sys

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
