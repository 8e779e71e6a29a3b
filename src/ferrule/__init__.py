"""Ferrule: a few desktop machines joined by ordinary cables, as one AI machine."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ferrule")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
