"""Machines that trust each other: token, membership, records, discovery, agents."""
