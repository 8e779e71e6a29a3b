"""Devices: where a rank's tensors live and its step runs."""

from ferrule.engine.devices.device import Device
from ferrule.engine.devices.registry import DEVICES, device_kind, open_device

__all__ = ["DEVICES", "Device", "device_kind", "open_device"]
