"""Library that MLX opens. Finding it imports nothing."""

from __future__ import annotations

from importlib.util import find_spec

LIBRARY = "MLX_MPI_LIBNAME"
"""Variable that names the library which MLX takes for Open MPI."""


def library() -> str:
    """Path of the library for programs of this Python."""
    found = find_spec("ferrule._native")
    if found is None or found.origin is None:
        raise ImportError("Ferrule's native library is not there; install Ferrule anew")
    return found.origin
