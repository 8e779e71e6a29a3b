// The network interfaces of this host by which others reach it, and which of them lead to another host.
#pragma once

#include <sys/socket.h>

#include <span>
#include <string>
#include <vector>

#include "nccl/join/wire.h"
#include "nccl/settings.h"

namespace ferrule::nccl {

struct Interface {
  std::string name;
  Address address{};
  int prefix = 128;  // of the address as IPv6

  bool reaches(const Address& other) const;
};

bool is_loopback(const Address& address);
std::string text_of(const Address& address);
// For connect and bind. Returns its length.
socklen_t socket_address(const Address& address, std::uint16_t port, sockaddr_storage& into);

// Those that are up and have an address which is not link-local, by name, at most kMaxAddresses; without a key loopback
// alone. Throws Error where none is left, or one is named that is not there.
std::vector<Interface> usable_interfaces(const Settings& settings);

// In Mbit/s, of all of them; 10,000 for one of which the kernel tells nothing.
int speed_of(std::span<const Interface> interfaces);
// Directory of the PCI device in /sys; empty where there is none.
std::string pci_path(const Interface& interface);

// How to get to a host: from which own address (all zeros: the kernel chooses) to which of its addresses.
struct Route {
  Address from{};
  Address to{};
  std::string name;  // for people
};
// One for each network that both are on; else one to its first address.
std::vector<Route> routes(std::span<const Interface> own, std::span<const Address> theirs);

}  // namespace ferrule::nccl
