"""Ranks on this machine and on others: hostfiles, environments, supervisors, and the launcher that uses them."""
