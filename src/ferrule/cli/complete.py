"""What the shell offers behind Tab. Each function imports only when it is asked; files stay the shell's to offer."""

from __future__ import annotations

from collections.abc import Iterable


def models(incomplete: str) -> list[str]:
    """Models that `plan` knows by name."""
    from ferrule.model.read import known_models

    return _fitting(known_models(), incomplete)


def served_models(incomplete: str) -> list[str]:
    """What `serve` and `generate` have without a directory."""
    return _fitting(["demo"], incomplete)


def lab_profiles(incomplete: str) -> list[str]:
    from ferrule.hardware import shipped

    return _fitting(shipped().labs, incomplete)


def clusters(incomplete: str) -> list[str]:
    """The clusters to which this host belongs."""
    from ferrule.cluster.home import known_clusters

    return _fitting([home.name for home in known_clusters()], incomplete)


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
