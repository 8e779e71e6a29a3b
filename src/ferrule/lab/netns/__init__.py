"""Hosts as network namespaces, joined by emulated cables."""
