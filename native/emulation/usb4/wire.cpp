#include "emulation/usb4/wire.h"

#include <algorithm>
#include <cmath>

namespace ferrule::usb4 {

namespace {

constexpr std::size_t kMostFlying = 8192;
constexpr Time kLongestQueue = 200'000;  // ns of sending that may wait; the controller's own buffers are small
constexpr Time kLongestHold = 1'000'000;
constexpr double kNanoseconds = 1e9;
constexpr double kBits = 8;
// Overhead of the wire for each frame of 256 bytes or less: header, and the encoding of 128 bits as 132.
constexpr std::size_t kCell = 256;
constexpr std::size_t kCellHeader = 4;
constexpr double kEncoding = 132.0 / 128.0;

Time sending(std::size_t bytes, double rate) {
  const std::size_t cells = std::max<std::size_t>(1, (bytes + kCell - 1) / kCell);
  const double bits = static_cast<double>(bytes + cells * kCellHeader) * kBits * kEncoding;
  return static_cast<Time>(std::ceil(bits / rate * kNanoseconds));
}

}  // namespace

bool Wire::ready(Time now) const { return flying_.size() < kMostFlying && free_ - now < kLongestQueue; }

void Wire::send(const Target& target, const Frame& frame, Time now) {
  ++counters_.frames;
  counters_.bytes += frame.data.size();
  Time due = now;
  if (shape_.rate > 0) {
    free_ = std::max(free_, now) + sending(frame.data.size(), shape_.rate);
    due = free_;
  }
  due += shape_.delay;
  if (shape_.mute || random_.happens(shape_.drop)) {
    ++(shape_.mute ? counters_.muted : counters_.dropped);
    watch_(target, frame, Fate::dropped);
    return;
  }
  const bool corrupt = random_.happens(shape_.corrupt);
  const bool twice = random_.happens(shape_.duplicate);
  const bool later = random_.happens(shape_.reorder);
  counters_.corrupted += corrupt;
  counters_.duplicated += twice;
  if (!flying_.empty()) due = std::max(due, flying_.back().due);
  const bool plain = due <= now && flying_.empty() && !held_ && !corrupt && !twice && !later;
  if (plain) return out(target, frame);

  Flying flying{due, target, {frame.data.begin(), frame.data.end()}, frame.eof, frame.sof, corrupt};
  if (corrupt && !flying.data.empty()) {
    flying.data[random_.next() % flying.data.size()] ^= std::byte{1} << (random_.next() % 8);
  }
  if (later && !held_) {
    ++counters_.reordered;
    flying.due += kLongestHold;
    held_ = std::move(flying);
    return;
  }
  if (twice) fly(flying);
  fly(std::move(flying));
  if (held_) {
    held_->due = flying_.back().due;
    fly(*std::exchange(held_, std::nullopt));
  }
  pump(now);
}

void Wire::fly(Flying flying) {
  const std::size_t at = place(flying.target);
  if (under_way_.size() <= at) under_way_.resize(at + 1);
  ++under_way_[at];
  flying_.push_back(std::move(flying));
}

unsigned Wire::under_way(const Target& target) const {
  const std::size_t at = place(target);
  const bool held = held_ && place(held_->target) == at;
  return (at < under_way_.size() ? under_way_[at] : 0) + (held ? 1 : 0);
}

void Wire::pump(Time now) {
  if (held_ && held_->due <= now) fly(*std::exchange(held_, std::nullopt));
  while (!flying_.empty() && flying_.front().due <= now) {
    const Flying flying = std::move(flying_.front());
    flying_.pop_front();
    --under_way_[place(flying.target)];
    out(flying.target, {flying.data, flying.eof, flying.sof, flying.corrupt});
  }
}

Time Wire::next() const {
  Time next = flying_.empty() ? kNever : flying_.front().due;
  if (held_) next = std::min(next, held_->due);
  return next;
}

void Wire::clear() {
  counters_.cut += flying_.size() + (held_ ? 1 : 0);
  flying_.clear();
  under_way_.clear();
  held_.reset();
  free_ = 0;
}

void Wire::out(const Target& target, const Frame& frame) {
  ++counters_.delivered;
  watch_(target, frame, Fate::delivered);
  deliver_(target, frame);
}

}  // namespace ferrule::usb4
