"""Shell completion of arguments. Each function imports only when it is asked; files stay the shell's to offer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from ferrule.errors import FerruleError


def models(incomplete: str) -> list[str]:
    """Models that `plan` knows by name."""
    from ferrule.model.read import known_models

    return _fitting(known_models(), incomplete)


def served_models(incomplete: str) -> list[str]:
    """Models that `serve` and `generate` have without a directory."""
    return _fitting(["demo"], incomplete)


def lab_profiles(incomplete: str) -> list[str]:
    from ferrule.hardware import shipped

    return _fitting(shipped().labs, incomplete)


def clients(incomplete: str) -> list[str]:
    """Clients that `connect` knows."""
    from ferrule.cli.connect.clients import CLIENTS

    return _fitting(CLIENTS, incomplete)


def clusters(incomplete: str) -> list[str]:
    """The clusters to which this host belongs."""
    from ferrule.cluster.home import known_clusters

    return _fitting([home.name for home in known_clusters()], incomplete)


def hosts(incomplete: str) -> list[str]:
    """Hosts of this host's clusters, and those that ssh's configuration names. ``incomplete``: may be a list."""
    from ferrule.cluster.client import remembered
    from ferrule.cluster.home import known_clusters

    names = [member.name for home in known_clusters() for member in remembered(home).members.values()]
    config = Path("~/.ssh/config").expanduser()
    lines = config.read_text(errors="replace").splitlines() if config.is_file() else []
    for key, *words in filter(None, map(str.split, lines)):
        if key.lower() == "host":
            names += [word for word in words if not set(word) & set("*?!")]
    before, comma, _ = incomplete.rpartition(",")
    return _fitting([before + comma + name for name in dict.fromkeys(names)], incomplete)


def lab_hosts(incomplete: str) -> list[str]:
    """Hosts of the labs that are up."""
    from ferrule.lab.daemon import registry

    states = [registry.read_state(lab) for lab in registry.folder().iterdir() if lab.is_dir() and registry.held(lab)]
    return _fitting([host.name for state in states if state for host in state.hosts], incomplete)


def vm_hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Hosts of the lab of virtual machines that the words before name."""
    from ferrule.hardware import find_lab

    try:
        return _fitting(find_lab(ctx.params.get("lab") or "").hosts, incomplete)
    except FerruleError:
        return []


def probed_hosts(incomplete: str) -> list[str]:
    """Hosts that `links probe` can reach."""
    return [*lab_hosts(incomplete), *hosts(incomplete)]


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
