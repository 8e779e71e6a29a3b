"""The kernel module that makes a USB4 cable an RDMA device: look at it, install it, package it. See docs/driver.md."""

from ferrule.kmod.check import Check, check, usable
from ferrule.kmod.look import look
from ferrule.kmod.machine import LIVE
from ferrule.kmod.needs import Need, install_command, needs, packages_of
from ferrule.kmod.package import build_deb
from ferrule.kmod.perform import describe, install, uninstall
from ferrule.kmod.plan import plan_install, plan_removal
from ferrule.kmod.source import MODULE, PACKAGE, Source, read_source
from ferrule.kmod.state import Built, State

__all__ = [
    "LIVE",
    "MODULE",
    "PACKAGE",
    "Built",
    "Check",
    "Need",
    "Source",
    "State",
    "build_deb",
    "check",
    "describe",
    "install",
    "install_command",
    "look",
    "needs",
    "packages_of",
    "plan_install",
    "plan_removal",
    "read_source",
    "uninstall",
    "usable",
]
