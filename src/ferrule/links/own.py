"""Commands of a live tree that this process answers itself, so that no program has to be installed or started."""

from __future__ import annotations

import array
import ast
import errno
import fcntl
import grp
import importlib.util
import os
import platform
import socket
import stat
import struct
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from ferrule import __version__

VERSIONS = "ferrule version"
PAUSE = "ethtool -a"
"""Followed by the name of an interface."""

NODES = "ferrule device-nodes"
TORCH = "ferrule torch-build"

_NODES = ("kfd", "dri/renderD*", "nvidia[0-9]*", "nvidiactl", "nvidia-uvm")
_BUILT_FOR = {"__version__": "version", "cuda": "cuda", "hip": "hip", "xpu": "xpu"}
"""Names in ``torch/version.py``."""
_PACKAGES = ("torch", "transformers", "ray")
"""Of which ranks on two hosts should have the same version."""
_NAME_BYTES = 16
_SIOCETHTOOL, _ETHTOOL_GPAUSEPARAM = 0x8946, 0x12


def own_command(command: str) -> Callable[[], str] | None:
    """Function that answers ``command``; None where a program does."""
    if command in (VERSIONS, NODES, TORCH):
        return {VERSIONS: versions, NODES: device_nodes, TORCH: torch_build}[command]
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


def device_nodes(dev: Path = Path("/dev")) -> str:
    """Files by which programs reach GPUs: each with its mode, its group, and whether this user may use it."""
    lines = []
    for path in sorted(found for pattern in _NODES for found in dev.glob(pattern)):
        told = path.stat()
        try:
            group = grp.getgrgid(told.st_gid).gr_name
        except KeyError:
            group = "-"
        usable = "usable" if os.access(path, os.R_OK | os.W_OK) else "refused"
        lines.append(f"/dev/{path.relative_to(dev)} {stat.S_IMODE(told.st_mode):o} {group} {usable}\n")
    return "".join(lines)


def torch_build() -> str:
    """The installed torch's version and what it was built for, by the text of its ``version.py``: importing it takes
    seconds, and may hang where a driver does. Raises `FileNotFoundError` where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(errno.ENOENT, "torch is not installed")
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text(encoding="utf-8")
    found = {}
    for line in ast.parse(text).body:
        match line:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(value)))
            ):
                found[name] = value
    return "".join(f"{shown} {found[name]}\n" for name, shown in _BUILT_FOR.items() if name in found)


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
