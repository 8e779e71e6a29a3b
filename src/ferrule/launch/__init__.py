"""Start the ranks of a job: on this machine, over ssh, by the agents of a cluster, on Ray."""

from ferrule.launch.hostfile import HostEntry, parse_hosts, read_hostfile
from ferrule.launch.launcher import ENDING, PASSED_ON, Launcher, Task
from ferrule.launch.local import JobResult, LocalLauncher
from ferrule.launch.output import RankOutput
from ferrule.launch.places import LocalPlace, Place, SshPlace, place_for

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
    "parse_hosts",
    "place_for",
    "read_hostfile",
]
