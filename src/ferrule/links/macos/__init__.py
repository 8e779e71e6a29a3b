"""macOS readers of cables: the output of its commands. One file per subject; all only parse."""

from ferrule.links.macos.inventory import read_macos

__all__ = ["read_macos"]
