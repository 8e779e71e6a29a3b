"""Transports, which move bytes on a rail: shared memory, TCP, RDMA."""
