"""Write a cpio archive in the "newc" format, which is what Linux unpacks as its first file system."""

from __future__ import annotations

import stat
from pathlib import PurePosixPath
from typing import BinaryIO

_MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


class CpioWriter:
    """Writes entries to ``out``, each path once: the first wins. Parent directories are added as needed.

    Paths are absolute in the guest; those below /bin, /sbin, /lib and /lib64 go below /usr, to which symbolic links
    lead.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._seen: set[str] = {"."}
        self._inode = 0
        for name, target in _MERGED.items():
            self.directory(f"/{target}")
            self._seen.add(name)
            self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def __contains__(self, path: str) -> bool:
        return _relative(path) in self._seen

    def directory(self, path: str) -> None:
        name = _relative(path)
        for parent in reversed([name, *(str(up) for up in PurePosixPath(name).parents)]):
            if parent not in self._seen:
                self._seen.add(parent)
                self._entry(parent, stat.S_IFDIR | 0o755)

    def file(self, path: str, data: bytes, *, mode: int = 0o644, mtime: float = 0) -> None:
        """``mtime`` in seconds since 1970; Python's cached bytecode is only used if it matches the source's."""
        if name := self._new(path):
            self._entry(name, stat.S_IFREG | mode, data, mtime=mtime)

    def symlink(self, path: str, target: str) -> None:
        if name := self._new(path):
            self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def character_device(self, path: str, major: int, minor: int) -> None:
        if name := self._new(path):
            self._entry(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def close(self) -> None:
        """Write the trailer; ``out`` stays open."""
        self._entry("TRAILER!!!", 0)

    def _new(self, path: str) -> str:
        name = _relative(path)
        if name in self._seen:
            return ""
        self.directory(str(PurePosixPath(name).parent))
        self._seen.add(name)
        return name

    def _entry(
        self, name: str, mode: int, data: bytes = b"", *, mtime: float = 0, device: tuple[int, int] = (0, 0)
    ) -> None:
        self._inode += 1
        encoded = name.encode() + b"\0"
        nlink = 2 if stat.S_ISDIR(mode) else 1
        fields = (self._inode, mode, 0, 0, nlink, int(mtime), len(data), 0, 0, *device, len(encoded), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (header + encoded, data):
            self._out.write(part)
            self._out.write(b"\0" * (-len(part) % 4))


def guest_path(path: str) -> str:
    """Real path of ``path`` in the guest, whose /usr is merged."""
    return f"/{_relative(path)}"


def _relative(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts and parts[0] in _MERGED:
        parts[:1] = _MERGED[parts[0]].split("/")
    return "/".join(parts) or "."
