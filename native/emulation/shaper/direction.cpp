#include "emulation/shaper/direction.h"

#include <algorithm>
#include <cmath>

namespace ferrule::shaper {
namespace {

// The time over which load is looked at: long beside a packet, short beside what a person notices.
constexpr double kLoadSpan = 2e6;
// Less than this is what the receiver of a stream says in return: no load that makes a cable collapse.
constexpr double kNoLoad = 0.15;
// A packet that is overtaken comes so much later than its turn, in times of its delay and at least.
constexpr Time kOvertaken = 100'000;

double faded(double load, Time span) { return load * std::exp(-static_cast<double>(span) / kLoadSpan); }

}  // namespace

void Direction::set(const Shape& shape) {
  shape_ = shape;
  if (silent()) clear();
}

void Direction::clear() {
  for (const Packet& packet : waiting_) counters_.cut += packet.extent().frames;
  for (const Flying& flying : flying_) counters_.cut += flying.packet.extent().frames;
  waiting_.clear();
  flying_.clear();
  queued_ = 0;
  free_ = last_due_ = 0;
}

void Direction::arrive(Packet packet, Time now) {
  const Extent& extent = packet.extent();
  counters_.frames += extent.frames;
  counters_.bytes += extent.bytes;
  if (silent()) {
    counters_.cut += extent.frames;
    return;
  }
  const std::uint64_t size = wire_bytes(packet);
  // A queue that is empty takes any packet: else one that is longer than the queue could never pass.
  if (shape_.queue != 0 && queued_ != 0 && queued_ + size > shape_.queue) {
    counters_.overflowed += extent.frames;
    return;
  }
  packet.arrived = now;
  queued_ += size;
  waiting_.push_back(std::move(packet));
}

Time Direction::next() const {
  if (shape_.flow == Flow::stalled) return kNever;
  const Time turn = waiting_.empty() ? kNever : free_;
  return flying_.empty() ? turn : std::min(turn, flying_.front().due);
}

double Direction::load(Time now) const { return now <= free_ ? load_ : faded(load_, now - free_); }

void Direction::send_next(double other_load) {
  Packet packet = std::move(waiting_.front());
  waiting_.pop_front();
  const std::uint64_t size = wire_bytes(packet);
  queued_ -= std::min(queued_, size);  // the overhead may have changed meanwhile
  if (waiting_.empty()) queued_ = 0;
  const Time begin = std::max(free_, packet.arrived);
  if (begin > free_) rest_ = 0;
  load_ = load(begin);
  Time taken = 0;
  if (shape_.rate > 0) {
    // With both directions at full load, each gets half of what they get together.
    const double both = std::clamp((other_load - kNoLoad) / (1 - kNoLoad), 0.0, 1.0);
    const double part = shape_.collapse > 0 ? 1 - (1 - shape_.collapse / 2) * both : 1;
    const double exact = static_cast<double>(size) * 8e9 / (shape_.rate * part) + rest_;
    taken = static_cast<Time>(exact);
    rest_ = exact - static_cast<double>(taken);
    load_ = 1 - faded(1 - load_, taken);
  }
  free_ = begin + taken;

  const std::uint32_t frames = packet.extent().frames;
  if (hits(packet, shape_.loss)) {
    counters_.lost += frames;
    return;
  }
  if (hits(packet, shape_.corrupt)) {
    counters_.corrupted += frames;
    // No checksum would find the error; on a real cable the receiver's adapter drops the frame.
    if (lacks_checksum(std::as_const(packet).bytes())) return;
    damage(packet);
  }
  Time due = free_ + shape_.delay;
  if (shape_.jitter > 0) {
    due += static_cast<Time>(static_cast<double>(shape_.jitter) * (2 * random_.fraction() - 1));
    due = std::max(due, free_);
  }
  if (hits(packet, shape_.reorder)) {
    counters_.reordered += frames;
    fly(std::move(packet), due + std::max(shape_.delay, kOvertaken));
    return;
  }
  last_due_ = due = std::max(due, last_due_);
  if (hits(packet, shape_.duplicate)) {
    counters_.duplicated += frames;
    fly(packet.copy(), due);
  }
  fly(std::move(packet), due);
}

void Direction::fly(Packet packet, Time due) {
  auto place = flying_.end();
  while (place != flying_.begin() && std::prev(place)->due > due) --place;
  flying_.insert(place, Flying{due, std::move(packet)});
}

bool Direction::hits(const Packet& packet, double probability) {
  const std::uint32_t frames = packet.extent().frames;
  return random_.happens(frames == 1 || probability <= 0 ? probability : 1 - std::pow(1 - probability, frames));
}

// One bit, behind the addresses: checksums of the receiver find it.
void Direction::damage(Packet& packet) {
  const std::size_t begin = kHeaderBytes + kEthernetBytes;
  const std::span<std::byte> bytes = packet.bytes();
  if (bytes.size() <= begin) return;
  const std::uint64_t bit = random_.next() % ((bytes.size() - begin) * 8);
  bytes[begin + bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
}

}  // namespace ferrule::shaper
