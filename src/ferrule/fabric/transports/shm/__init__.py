"""Shared memory between the ranks of one host."""
