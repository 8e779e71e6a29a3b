"""What one machine's device does: measured by a short benchmark, and remembered."""

from ferrule.plan.device.measure import device_from, free_now, measure_device, measure_figures, recall_device

__all__ = ["device_from", "free_now", "measure_device", "measure_figures", "recall_device"]
