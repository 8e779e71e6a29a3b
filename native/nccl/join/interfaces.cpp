#include "nccl/join/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "nccl/log.h"

namespace ferrule::nccl {
namespace {

constexpr int kUnknownSpeed = 10'000;
constexpr std::size_t kMappedBytes = 12;
constexpr std::array<std::uint8_t, kMappedBytes> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// As in fabric/join/addresses.py: bridges to a host's own containers and machines, tunnels, and our driver's
// interfaces, which carry nothing.
bool is_virtual(const std::string& name) {
  constexpr const char* kPrefixes[] = {"docker",    "veth",   "virbr", "vnet",    "cni", "flannel", "cali", "lxc",
                                       "lxd",       "podman", "kube",  "dummy",   "ifb", "tun",     "tap",  "wg",
                                       "tailscale", "zt",     "vmnet", "vboxnet", "gif", "stf",     "frl"};
  if (std::ranges::any_of(kPrefixes, [&](const char* prefix) { return name.starts_with(prefix); })) return true;
  constexpr std::size_t kBridgeDigits = 12;  // of docker's
  return name.starts_with("br-") && name.size() == 3 + kBridgeDigits &&
         name.find_first_not_of("0123456789abcdef", 3) == std::string::npos;
}

bool is_mapped(const Address& address) { return std::equal(kMapped.begin(), kMapped.end(), address.begin()); }

bool is_link_local(const Address& address) {
  if (is_mapped(address)) return address[12] == 169 && address[13] == 254;
  return address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
}

bool read(const sockaddr* from, Address& into) {
  if (from->sa_family == AF_INET) {
    std::copy(kMapped.begin(), kMapped.end(), into.begin());
    std::memcpy(into.data() + kMappedBytes, &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    return true;
  }
  if (from->sa_family != AF_INET6) return false;
  std::memcpy(into.data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, into.size());
  return true;
}

int prefix_of(const sockaddr* mask) {
  Address bits{};
  if (mask == nullptr || !read(mask, bits)) return 128;
  int count = mask->sa_family == AF_INET ? 8 * static_cast<int>(kMappedBytes) : 0;
  for (std::size_t i = mask->sa_family == AF_INET ? kMappedBytes : 0; i < bits.size(); ++i) {
    count += std::popcount(bits[i]);
  }
  return count;
}

std::vector<Interface> all_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw Error(kSystemError, "the kernel does not list its network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    Interface one{each->ifa_name, {}, 0};
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 || !read(each->ifa_addr, one.address)) continue;
    if (is_link_local(one.address)) continue;
    one.prefix = prefix_of(each->ifa_netmask);
    found.push_back(std::move(one));
  }
  // One address of each, of IPv4 where it has one.
  std::ranges::stable_sort(found, {},
                           [](const Interface& one) { return std::pair(one.name, !is_mapped(one.address)); });
  const auto same = [](const Interface& one, const Interface& other) { return one.name == other.name; };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

std::string names_of(std::span<const Interface> interfaces) {
  std::string names;
  for (const Interface& one : interfaces) names += (names.empty() ? "" : ", ") + one.name;
  return names.empty() ? "none" : names;
}

}  // namespace

bool Interface::reaches(const Address& other) const {
  if (other == address) return false;
  for (int bit = 0; bit < prefix; bit += 8) {
    const auto i = static_cast<std::size_t>(bit / 8);
    const int mask = prefix - bit >= 8 ? 0xff : 0xff << (8 - (prefix - bit));
    if (((address[i] ^ other[i]) & mask) != 0) return false;
  }
  return true;
}

bool is_loopback(const Address& address) {
  if (is_mapped(address)) return address[kMappedBytes] == 127;
  Address one{};
  one.back() = 1;
  return address == one;
}

std::string text_of(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_mapped(address)) {
    (void)::inet_ntop(AF_INET, address.data() + kMappedBytes, text, sizeof text);
  } else {
    (void)::inet_ntop(AF_INET6, address.data(), text, sizeof text);
  }
  return text;
}

socklen_t socket_address(const Address& address, std::uint16_t port, sockaddr_storage& into) {
  into = {};
  if (is_mapped(address)) {
    auto& four = reinterpret_cast<sockaddr_in&>(into);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&four.sin_addr, address.data() + kMappedBytes, 4);
    return sizeof four;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(into);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  std::memcpy(&six.sin6_addr, address.data(), address.size());
  return sizeof six;
}

std::vector<Interface> usable_interfaces(const Settings& settings) {
  const std::vector<Interface> all = all_interfaces();
  const auto named = [&](const std::string& name) { return std::ranges::count(settings.interfaces, name) != 0; };
  for (const std::string& name : settings.interfaces) {
    if (name.starts_with('^') || std::ranges::count(all, name, &Interface::name) != 0) continue;
    throw Error(kInvalidUsage, "FERRULE_INTERFACES names " + name +
                                   ", which is not up or has no address here; there "
                                   "are " +
                                   names_of(all));
  }
  const bool choose = std::ranges::any_of(settings.interfaces, [](const auto& name) { return !name.starts_with('^'); });
  std::vector<Interface> found;
  for (const Interface& one : all) {
    const bool loopback = is_loopback(one.address);
    if (named("^" + one.name) || (choose && !named(one.name))) continue;
    if (settings.key.empty() ? !loopback : !choose && (loopback || is_virtual(one.name))) continue;
    if (found.size() < kMaxAddresses) found.push_back(one);
  }
  if (found.empty() && !choose) {  // a host of its own
    std::ranges::copy_if(all, std::back_inserter(found), [](const auto& one) { return is_loopback(one.address); });
  }
  if (found.empty()) {
    throw Error(kInvalidUsage,
                settings.key.empty()
                    ? "FERRULE_KEY is not set, and without it this plugin listens on loopback only, which "
                      "FERRULE_INTERFACES leaves out: set the same key on all hosts, or start the ranks "
                      "with `ferrule launch`"
                    : "no network interface is left to use; there are " + names_of(all));
  }
  return found;
}

int speed_of(std::span<const Interface> interfaces) {
  int total = 0;
  for (const Interface& one : interfaces) {
    std::ifstream file("/sys/class/net/" + one.name + "/speed");
    int speed = 0;
    if (!(file >> speed) || speed <= 0) speed = kUnknownSpeed;
    total += speed;
  }
  return total;
}

std::string pci_path(const Interface& interface) {
  const std::string device = "/sys/class/net/" + interface.name + "/device";
  const std::unique_ptr<char, void (*)(void*)> path(::realpath(device.c_str(), nullptr), std::free);
  return path && std::string(path.get()).find("/pci") != std::string::npos ? path.get() : "";
}

std::vector<Route> routes(std::span<const Interface> own, std::span<const Address> theirs) {
  std::vector<Route> found;
  std::vector<bool> taken(theirs.size());
  for (const Interface& one : own) {
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      if (taken[i] || !one.reaches(theirs[i])) continue;
      taken[i] = true;
      found.push_back({one.address, theirs[i], one.name + " to " + text_of(theirs[i])});
      break;
    }
  }
  if (found.empty() && !theirs.empty()) found.push_back({{}, theirs.front(), text_of(theirs.front())});
  return found;
}

}  // namespace ferrule::nccl
