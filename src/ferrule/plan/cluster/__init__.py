"""Machines and cables as the planner knows them: from a file, from published figures, or measured live."""

from ferrule.plan.cluster.file import parse_cluster, read_cluster, write_cluster
from ferrule.plan.cluster.inventory import cluster_of_inventories
from ferrule.plan.cluster.live import (
    HostReport,
    cluster_of_reports,
    described_host,
    devices_here,
    live_cluster,
    parse_report,
    report_text,
)
from ferrule.plan.cluster.local import machine_of_ranks
from ferrule.plan.cluster.profile import cluster_from_profile
from ferrule.plan.cluster.rails import Sources
from ferrule.plan.cluster.spec import CORES_KEEP, ClusterSpec, DeviceSpec, PairSpec, RailSpec

__all__ = [
    "CORES_KEEP",
    "ClusterSpec",
    "DeviceSpec",
    "HostReport",
    "PairSpec",
    "RailSpec",
    "Sources",
    "cluster_from_profile",
    "cluster_of_inventories",
    "cluster_of_reports",
    "described_host",
    "devices_here",
    "live_cluster",
    "machine_of_ranks",
    "parse_cluster",
    "parse_report",
    "read_cluster",
    "report_text",
    "write_cluster",
]
