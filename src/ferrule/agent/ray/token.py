"""The secret of a cluster's Ray, and where its nodes keep what they need: files for this user alone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ferrule.cluster.home import ClusterHome
from ferrule.errors import ClusterError
from ferrule.files import runtime_directory
from ferrule.secure import derived_key

_MAX_TEMP = 39
"""Letters that Ray's directory may have: Ray adds up to 64, and the path of a socket may have 103."""


def token_file(home: ClusterHome) -> Path:
    """The file with Ray's token, which follows from the cluster's key. Made if it is not there, mode 600."""
    file = home.directory / "ray-token"
    token = derived_key(home.key, "ray")
    try:
        if file.read_text() == token and not file.stat().st_mode & 0o077:
            return file
    except OSError:
        pass  # it is written now
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(token)
    return file


def temp_directory(home: ClusterHome) -> Path:
    """Directory of Ray's sessions: in the cluster's directory, by a symbolic link where sockets need a shorter path.

    Raises `ClusterError`."""
    own = home.directory / "ray" / "tmp"
    own.parent.mkdir(mode=0o700, exist_ok=True)
    if len(str(own).encode()) <= _MAX_TEMP:
        return own
    try:
        short = _symlink(home)
    except PermissionError as error:
        raise ClusterError(str(error)) from None
    if len(str(short).encode()) > _MAX_TEMP:
        raise ClusterError(f"the path of {short} is too long for Ray's sockets; set XDG_RUNTIME_DIR to a shorter one")
    if not short.is_symlink() or short.readlink() != own:
        short.unlink(missing_ok=True)
        short.symlink_to(own)
    return short


def remove_symlink(home: ClusterHome) -> None:
    """Before the cluster's directory is removed."""
    with suppress(OSError, ClusterError):
        _symlink(home).unlink(missing_ok=True)


def _symlink(home: ClusterHome) -> Path:
    return runtime_directory("ray") / home.settings.host[:8]
