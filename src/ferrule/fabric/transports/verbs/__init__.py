"""RDMA by libibverbs."""
