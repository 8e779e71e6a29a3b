"""Kernels and kernel modules for guests."""
