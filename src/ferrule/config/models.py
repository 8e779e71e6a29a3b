"""Settings from the environment: directories of models on this host, and the delay before a cluster's model moves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ferrule.config.values import read_seconds

DEFAULT_MOVE_BACK = 30.0


@dataclass(frozen=True)
class ModelSettings:
    """Model directories of this host. ``path``: directories in which the model's directory is looked for instead of
    where the server was told. ``cache``: where parts that other hosts sent are kept; None for the user's cache."""

    path: tuple[str, ...] = ()
    cache: Path | None = None


def model_settings(environ: Mapping[str, str]) -> ModelSettings:
    """``FERRULE_MODEL_PATH`` (directories, as in PATH) and ``FERRULE_MODEL_CACHE`` (a directory)."""
    path = tuple(each for each in environ.get("FERRULE_MODEL_PATH", "").split(os.pathsep) if each)
    cache = environ.get("FERRULE_MODEL_CACHE")
    return ModelSettings(path, Path(cache).expanduser() if cache else None)


def move_back_seconds(environ: Mapping[str, str]) -> float | None:
    """``FERRULE_MOVE_BACK``: how long hosts and devices must have been up before a model moves to them; None: never."""
    if environ.get("FERRULE_MOVE_BACK", "").strip().lower() == "never":
        return None
    return read_seconds(environ, "FERRULE_MOVE_BACK", DEFAULT_MOVE_BACK)
