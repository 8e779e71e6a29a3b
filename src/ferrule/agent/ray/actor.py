"""Ray actor on each host, by the host's name in the namespace ``ferrule``: tells Ray's programs of that host."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ferrule.cluster.client import ask
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetReport, GetStatus


class HostAgent:
    """Asks the agent beside it. ``directory``: of the cluster, on this host."""

    def __init__(self, directory: str) -> None:
        folder = Path(directory)
        self._home = ClusterHome(folder.name, folder.parent)

    def host(self) -> str:
        """The host's name."""
        return self._home.settings.name

    def report(self) -> dict[str, object]:
        """Devices, memory, links, load, heat and power, as in ``ferrule status --json``."""
        found: dict[str, object] = msgspec.to_builtins(ask(self._home, GetReport()))
        return found

    def cluster(self) -> dict[str, object]:
        """The members of the cluster, and how this host sees them."""
        found: dict[str, object] = msgspec.to_builtins(ask(self._home, GetStatus()))
        return found
