"""What one machine's device does: measured by a short benchmark, and remembered."""
