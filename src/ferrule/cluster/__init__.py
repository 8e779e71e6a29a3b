"""Machines and processes that work together: for now, the ranks of one job on this machine."""

from ferrule.cluster.local import JobResult, LocalLauncher, launch_local

__all__ = ["JobResult", "LocalLauncher", "launch_local"]
