"""The kernel module that makes a USB4 cable an RDMA device: look at it, install it, package it. See docs/driver.md."""

from ferrule.driver.check import Check, check, usable
from ferrule.driver.look import look
from ferrule.driver.machine import LIVE
from ferrule.driver.needs import Need, install_command, needs, packages_of
from ferrule.driver.package import build_deb
from ferrule.driver.perform import install, recover, uninstall, words
from ferrule.driver.plan import plan_install, plan_removal
from ferrule.driver.source import MODULE, PACKAGE, Source, read_source
from ferrule.driver.state import Built, Record, Signing, State

__all__ = [
    "LIVE",
    "MODULE",
    "PACKAGE",
    "Built",
    "Check",
    "Need",
    "Record",
    "Signing",
    "Source",
    "State",
    "build_deb",
    "check",
    "install",
    "install_command",
    "look",
    "needs",
    "packages_of",
    "plan_install",
    "plan_removal",
    "read_source",
    "recover",
    "uninstall",
    "usable",
    "words",
]
