"""Machines and processes that work together: the ranks of a job, on this machine and over ssh."""

from ferrule.cluster.launch.hostfile import HostEntry, parse_hosts, read_hostfile
from ferrule.cluster.launch.launcher import ENDING, PASSED_ON, Launcher, Task
from ferrule.cluster.launch.places import LocalPlace, Place, SshPlace, place_for
from ferrule.cluster.local import JobResult, LocalLauncher, launch_local
from ferrule.cluster.output import RankOutput
from ferrule.cluster.process import usable_cores

__all__ = [
    "ENDING",
    "PASSED_ON",
    "HostEntry",
    "JobResult",
    "Launcher",
    "LocalLauncher",
    "LocalPlace",
    "Place",
    "RankOutput",
    "SshPlace",
    "Task",
    "launch_local",
    "parse_hosts",
    "place_for",
    "read_hostfile",
    "usable_cores",
]
