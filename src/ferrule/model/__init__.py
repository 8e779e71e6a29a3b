"""The model that Ferrule carries with it, so that everything can be tried without a download."""

from ferrule.model.embedded import demo_path

__all__ = ["demo_path"]
