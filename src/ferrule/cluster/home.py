"""State directory of a cluster on a host: ``~/.local/state/ferrule/clusters/NAME``, for its user alone.

``key``: the cluster's; ``state.db``: its members and which models should be up (`ferrule.cluster.store`);
``agent.log``; ``lock``: held by the agent while it lives, so that process numbers tell nothing; ``agent.sock``:
where it answers this host's programs.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from ferrule.cluster.desired import HostId, Name, Port
from ferrule.config import host_id
from ferrule.errors import ClusterError, ConfigError
from ferrule.files import FileRecord, held, hold, read_record, runtime_directory, state_directory, write_record
from ferrule.lab.netns.control import here
from ferrule.secure import KEY_BYTES, check_cluster_name

DEFAULT_CLUSTER = "ferrule"
DEFAULT_PORT = 8421
"""Of agents; the API of `ferrule serve` has 8420."""
LOG, SOCKET = "agent.log", "agent.sock"
_KEY, _HOST, _LOCK = "key", "host.json", "lock"
_LOCK_SECONDS = 2.0
_MAX_SOCKET_PATH = 100
"""Bytes that the path of a Unix socket may have on every system (104 on macOS, with its end)."""


def clusters_directory() -> Path:
    """``$FERRULE_STATE``, or ``$XDG_STATE_HOME/ferrule``, or ``~/.local/state/ferrule``, and ``clusters`` in it.

    In a host of a lab it is that host's own, since all hosts of a lab share this machine's files. It need not exist.
    """
    base, place = state_directory(), here()
    return base / "labs" / place.lab / place.host / "clusters" if place is not None else base / "clusters"


def own_host_name() -> str:
    """Default name of this host in a cluster."""
    return host_id(os.environ) or socket.gethostname().partition(".")[0] or "host"


class HostSettings(FileRecord, frozen=True, tag="host-settings"):
    """Listening settings of this host's agent, as `ferrule up` was told. ``host``: 32 hexadecimal letters that no other
    host has.

    ``seeds``: addresses at which others may be found where mDNS does not reach.
    """

    host: HostId
    name: Name
    port: Port
    listen: str = ""
    seeds: tuple[str, ...] = ()
    mdns: bool = True


class ClusterHome:
    """The directory of one cluster on this host. ``name``: the cluster's."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        self.name = check_cluster_name(name)
        self.directory = (directory or clusters_directory()) / name

    @property
    def exists(self) -> bool:
        return (self.directory / _KEY).is_file()

    @property
    def key(self) -> bytes:
        """Raises `ClusterError` where it cannot be used."""
        file = self.directory / _KEY
        try:
            if file.stat().st_mode & 0o077:
                raise ClusterError(f"others may read {file}, this cluster's key; keep it secret: chmod 600 {file}")
            key = bytes.fromhex(file.read_text())
        except (OSError, ValueError) as error:
            raise ClusterError(f"the cluster's key in {file} cannot be read: {error}; join it again") from error
        if len(key) != KEY_BYTES:
            raise ClusterError(f"{file} holds no key of {KEY_BYTES} bytes; join the cluster again")
        return key

    @property
    def settings(self) -> HostSettings:
        file = self.directory / _HOST
        try:
            return read_record(file, HostSettings)
        except (OSError, msgspec.MsgspecError) as error:
            raise ClusterError(f"{file} cannot be read: {error}; leave the cluster and join it again") from error

    @property
    def log(self) -> Path:
        return self.directory / LOG

    @property
    def socket(self) -> str:
        """The path of the agent's Unix socket, which for a long one is in a directory of its own."""
        path = str(self.directory / SOCKET)
        if len(path.encode()) <= _MAX_SOCKET_PATH:
            return path
        try:
            return str(runtime_directory("agents") / f"{self.settings.host[:16]}.sock")
        except PermissionError as error:
            raise ClusterError(str(error)) from None

    def create(self, key: bytes, settings: HostSettings) -> None:
        """Make the directory, with the key last: without it there is no cluster."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self.write_settings(settings)
        file = self.directory / _KEY
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(key.hex())

    def write_settings(self, settings: HostSettings) -> None:
        write_record(self.directory / _HOST, settings)

    def remove(self) -> None:
        """Forget the cluster: the key first."""
        (self.directory / _KEY).unlink(missing_ok=True)
        with suppress(ClusterError, OSError):
            Path(self.socket).unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def take(self) -> int:
        """Take the agent's lock; returns its descriptor, which a process that inherits it holds too.

        Raises `ClusterError` where another agent has it.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = hold(self.directory / _LOCK, _LOCK_SECONDS)
        if lock is None:
            raise ClusterError(f"an agent of the cluster {self.name!r} runs on this host already: ferrule status")
        return lock

    def is_running(self) -> bool:
        """Whether an agent holds the lock."""
        return held(self.directory / _LOCK)


def known_clusters() -> list[ClusterHome]:
    """The clusters to which this host belongs."""
    folder = clusters_directory()
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    homes = []
    for name in names:
        with suppress(ConfigError):  # a directory of something else
            homes.append(ClusterHome(name))
    return [home for home in homes if home.exists]


def running_cluster() -> ClusterHome | None:
    """The cluster whose agent runs on this host; None where none does, or several do."""
    running = [home for home in known_clusters() if home.is_running()]
    return running[0] if len(running) == 1 else None


def choose_cluster(name: str | None) -> ClusterHome:
    """The cluster that is meant: by its name, or the only one. Raises `ClusterError`."""
    known = known_clusters()
    fits = [home for home in known if name is None or home.name == name]
    if len(fits) == 1:
        return fits[0]
    if not known:
        raise ClusterError("this host is in no cluster; start one: ferrule up, or join one: ferrule up --join TOKEN")
    names = ", ".join(home.name for home in known)
    if name is not None:
        raise ClusterError(f"this host is in no cluster {name!r}, only in {names}")
    raise ClusterError(f"this host is in several clusters ({names}); say which with --cluster NAME")


def new_host_id() -> str:
    return secrets.token_hex(16)
