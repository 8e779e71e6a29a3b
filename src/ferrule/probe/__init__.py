"""Measure the links between hosts: what `ferrule links probe` does."""

from ferrule.probe.ends import End, in_lab_host, in_standing_lab, new_key, over_ssh, this_machine
from ferrule.probe.probe import QUICK, Effort, probe_pair
from ferrule.probe.rows import to_csv

__all__ = [
    "QUICK",
    "Effort",
    "End",
    "in_lab_host",
    "in_standing_lab",
    "new_key",
    "over_ssh",
    "probe_pair",
    "this_machine",
    "to_csv",
]
