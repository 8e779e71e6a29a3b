"""Collectives between the devices of one host, without the host: NCCL, RCCL and their kin."""
