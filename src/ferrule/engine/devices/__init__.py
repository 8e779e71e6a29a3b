"""Devices: where a rank's tensors live and its step runs."""

from ferrule.engine.devices.device import Device, RankGroup
from ferrule.engine.devices.graphs import Graph, Graphs
from ferrule.engine.devices.registry import DEVICES, device_kind, find_device, name_here, open_device, others_here

__all__ = [
    "DEVICES",
    "Device",
    "Graph",
    "Graphs",
    "RankGroup",
    "device_kind",
    "find_device",
    "name_here",
    "open_device",
    "others_here",
]
