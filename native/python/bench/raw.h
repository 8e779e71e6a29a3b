// Limits of the hardware itself, for benchmarks, which no library passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferrule {

// Half round trips in microseconds of `rounds` messages to and fro between two processes, from private memory at
// `data` to private memory. One end starts, the other answers; both poll without pause. Throw std::runtime_error when
// the peer is gone or silent for `timeout` seconds. Memory is given by its address.

// Over a connected stream socket.
std::vector<double> raw_tcp_ping_pong(int fd, std::uintptr_t data, std::size_t bytes, int rounds, bool starts,
                                      double timeout);

// Microseconds of `rounds` exchanges: both ends send `data` at once and receive the other's into `other`.
std::vector<double> raw_tcp_exchange(int fd, std::uintptr_t data, std::uintptr_t other, std::size_t bytes, int rounds,
                                     double timeout);

// The same as raw_tcp_ping_pong by one thread that has both ends of the connection, for hosts that share a machine's
// processors.
std::vector<double> raw_tcp_alone(int fd, int other_fd, std::uintptr_t data, std::size_t bytes, int rounds,
                                  double timeout);

// Through shared memory: raw_shm_bytes() bytes at `memory`, mapped by both, zero before the first use and used by
// nothing else.
std::vector<double> raw_shm_ping_pong(std::uintptr_t memory, std::uintptr_t data, std::size_t bytes, int rounds,
                                      bool starts, double timeout);
std::size_t raw_shm_bytes();

// Microseconds of `rounds` copies.
std::vector<double> raw_memcpy(std::uintptr_t target, std::uintptr_t source, std::size_t bytes, int rounds);

}  // namespace ferrule
