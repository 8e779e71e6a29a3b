"""Inventory of this machine's cables, interfaces, RDMA devices and PCIe links, and the doctor's findings on them."""

from ferrule.links.findings import SEVERITIES, Finding, Severity, worst
from ferrule.links.measured.findings import both_ways, examine
from ferrule.links.measured.store import (
    DIRECTIONS,
    Bandwidth,
    Fault,
    Latency,
    LinkEnd,
    MeasuredLink,
    MeasuredLinks,
    MeasuredPair,
)
from ferrule.links.probe import Probe
from ferrule.links.record import write_record
from ferrule.links.traffic import Traffic, read_counters, traffic
from ferrule.links.types.device import ComputeDevice, DeviceNode, TorchBuild
from ferrule.links.types.inventory import Facts, Inventory
from ferrule.links.types.machine import UNLIMITED_BYTES, Machine
from ferrule.links.types.net import NetDevice
from ferrule.links.types.pcie import PcieLink
from ferrule.links.types.rdma import RdmaDevice, RdmaPort
from ferrule.links.types.thunderbolt import ThunderboltDomain, ThunderboltPeer

__all__ = [
    "DIRECTIONS",
    "SEVERITIES",
    "UNLIMITED_BYTES",
    "Bandwidth",
    "ComputeDevice",
    "DeviceNode",
    "Facts",
    "Fault",
    "Finding",
    "Inventory",
    "Latency",
    "LinkEnd",
    "Machine",
    "MeasuredLink",
    "MeasuredLinks",
    "MeasuredPair",
    "NetDevice",
    "PcieLink",
    "Probe",
    "RdmaDevice",
    "RdmaPort",
    "Severity",
    "ThunderboltDomain",
    "ThunderboltPeer",
    "TorchBuild",
    "Traffic",
    "both_ways",
    "examine",
    "read_counters",
    "traffic",
    "worst",
    "write_record",
]
