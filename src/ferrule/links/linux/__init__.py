"""Linux readers of cables: sysfs, procfs and a few commands. One file per subject; all only parse."""

from ferrule.links.linux.inventory import read_linux

__all__ = ["read_linux"]
