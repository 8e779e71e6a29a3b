#include "emulation/shaper/join.h"

#include <algorithm>
#include <cstring>

namespace ferrule::shaper {
namespace {

// A station that sends from ever new addresses must not fill the memory.
constexpr std::size_t kMostAddresses = 4096;
constexpr std::size_t kAddressBytes = 6;

std::uint64_t address_at(std::span<const std::byte> packet, std::size_t place) {
  std::uint64_t found = 0;
  std::memcpy(&found, packet.data() + kHeaderBytes + place, kAddressBytes);
  return found;
}

bool is_group(std::span<const std::byte> packet) { return (packet[kHeaderBytes] & std::byte{1}) != std::byte{0}; }

// From the switch on, only what its port can carry matters.
Shape port_shape(const Shape& shape) {
  Shape port;
  port.rate = shape.rate;
  port.collapse = shape.collapse;
  port.queue = shape.queue;
  port.overhead = shape.overhead;
  port.flow = shape.flow == Flow::mute ? Flow::moves : shape.flow;
  return port;
}

}  // namespace

Join::Join(int ends, std::uint64_t seed) {
  Random seeds(seed);
  for (int end = 0; end < ends; ++end) up_.emplace_back(seeds.next());
  if (ends > 2) {
    for (int end = 0; end < ends; ++end) down_.emplace_back(seeds.next());
  }
}

void Join::set(int end, const Shape& shape) {
  up_.at(static_cast<std::size_t>(end)).set(shape);
  if (!down_.empty()) down_[static_cast<std::size_t>(end)].set(port_shape(shape));
}

void Join::clear() {
  for (std::vector<Direction>* directions : {&up_, &down_}) {
    for (Direction& direction : *directions) direction.clear();
  }
}

void Join::arrive(int end, Packet packet, Time now) {
  if (packet.bytes().size() < kHeaderBytes + kEthernetBytes) return;
  up_.at(static_cast<std::size_t>(end)).arrive(std::move(packet), now);
}

Time Join::next() const {
  Time soonest = kNever;
  for (const std::vector<Direction>* directions : {&up_, &down_}) {
    for (const Direction& direction : *directions) soonest = std::min(soonest, direction.next());
  }
  return soonest;
}

void Join::advance(Direction& one, Direction& other, Time now) {
  for (;;) {
    const bool first = one.turn() <= other.turn();
    Direction& next = first ? one : other;
    const Time begin = next.turn();
    if (begin > now) return;
    next.send_next((first ? other : one).load(begin));
  }
}

void Join::forward(int from, Packet packet, Time now) {
  const std::span<const std::byte> bytes = std::as_const(packet).bytes();
  if (known_.size() < kMostAddresses) known_.insert_or_assign(address_at(bytes, kAddressBytes), from);
  const auto place = known_.find(address_at(bytes, 0));
  if (!is_group(bytes) && place != known_.end()) {
    if (place->second != from) down_[static_cast<std::size_t>(place->second)].arrive(std::move(packet), now);
    return;
  }
  for (int end = 0; end < ends(); ++end) {
    if (end != from) down_[static_cast<std::size_t>(end)].arrive(packet.copy(), now);
  }
}

}  // namespace ferrule::shaper
