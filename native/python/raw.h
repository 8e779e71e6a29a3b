#pragma once

#include <cstddef>
#include <vector>

namespace ferrule {

// Half round trips in microseconds of `rounds` messages to and fro over a connected stream socket. One end starts,
// the other answers. Throws std::runtime_error when the peer is gone or silent for `timeout` seconds.
std::vector<double> raw_ping_pong(int fd, std::size_t bytes, int rounds, bool starts, double timeout);

}  // namespace ferrule
