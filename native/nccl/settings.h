// What the environment says: the same variables as for Ferrule's own ranks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "transports/message.h"

namespace ferrule::nccl {

enum class Choice { automatic, shm, tcp };

struct Settings {
  std::vector<std::byte> key;           // FERRULE_KEY; empty: loopback only
  std::vector<std::string> interfaces;  // FERRULE_INTERFACES: names, or ^names to leave out
  int sockets = 1;                      // FERRULE_RAILS, per interface
  Choice transport = Choice::automatic;
  Clock::duration silence{std::chrono::milliseconds(800)};  // FERRULE_HEARTBEAT; zero: none is too long
  // FERRULE_TIMEOUT: how long a request, or a peer that has to connect, may keep us waiting while nothing moves. Longer
  // than for our own ranks: here a peer may still load its data. It is torch's for NCCL.
  Clock::duration timeout{std::chrono::minutes(10)};
  int speed = 0;     // FERRULE_NCCL_SPEED, of all interfaces in Mbit/s; 0: what the kernel says
  std::string host;  // FERRULE_HOST_ID

  // Throws Error that names the variable at fault.
  static Settings read();
};

}  // namespace ferrule::nccl
