"""Weights that do not fit in a rank's memory: they stay on its disk, and are read ahead of the step."""
