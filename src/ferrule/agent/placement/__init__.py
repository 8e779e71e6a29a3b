"""Placement of a model's ranks on the hosts of a cluster, and their start by agents."""
