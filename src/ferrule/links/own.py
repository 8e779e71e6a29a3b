"""Commands of a live tree that this process answers itself, so that no program has to be installed or started."""

from __future__ import annotations

import array
import errno
import fcntl
import platform
import socket
import struct
import sys
from collections.abc import Callable
from importlib import metadata

from ferrule import __version__

VERSIONS = "ferrule version"
PAUSE = "ethtool -a"
"""Followed by the name of an interface."""

_PACKAGES = ("torch", "transformers", "ray")
"""Of which ranks on two hosts should have the same version."""
_NAME_BYTES = 16
_SIOCETHTOOL, _ETHTOOL_GPAUSEPARAM = 0x8946, 0x12


def own_command(command: str) -> Callable[[], str] | None:
    """Function that answers ``command``; None where a program does."""
    if command == VERSIONS:
        return versions
    name = command.removeprefix(f"{PAUSE} ")
    if name != command and sys.platform == "linux":
        return lambda: pause(name)
    return None


def versions() -> str:
    """Of Ferrule, Python and the packages that matter between hosts, without importing them: some take seconds."""
    found = {"ferrule": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "".join(f"{name:<14}{version}\n" for name, version in found.items())


def pause(name: str) -> str:
    """Output of ``ethtool -a``: whether this end sends and obeys pause frames. No root is needed.

    Raises `OSError`: `errno.EOPNOTSUPP` where the driver does not tell.
    """
    label = name.encode()
    if not 0 < len(label) < _NAME_BYTES:
        raise OSError(errno.ENODEV, "no such interface")
    # struct ethtool_pauseparam: cmd, autoneg, rx_pause, tx_pause; the kernel writes it where the request points to.
    told = array.array("I", [_ETHTOOL_GPAUSEPARAM, 0, 0, 0])
    request = struct.pack(f"{_NAME_BYTES}sP", label, told.buffer_info()[0]).ljust(40, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SIOCETHTOOL, request)
    _, auto, receives, sends = told
    lines = (("Autonegotiate:", auto), ("RX:", receives), ("TX:", sends))
    return f"Pause parameters for {name}:\n" + "".join(f"{key}\t{'on' if on else 'off'}\n" for key, on in lines)
