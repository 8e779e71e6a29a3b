"""Ferrule: a few desktop machines joined by ordinary cables, as one AI machine."""

__version__: str
"""``0+unknown`` for a source tree that was never installed."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """``__version__`` is looked up when it is wanted, and not in every program that imports torch."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ferrule")
    except PackageNotFoundError:
        return "0+unknown"
