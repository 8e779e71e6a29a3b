"""How bytes move on a rail: shared memory, TCP, RDMA."""
