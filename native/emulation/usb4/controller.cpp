#include "emulation/usb4/controller.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ferrule::usb4 {

namespace {

constexpr std::uint32_t kThrottlingUnit = 256;  // ns
constexpr std::size_t kWord = 4;

std::uint32_t tx_registers(unsigned hop) { return kTxRings + hop * kRingStride; }
std::uint32_t rx_registers(unsigned hop) { return kRxRings + hop * kRingStride; }

Descriptor load(const std::byte* at) {
  Descriptor descriptor;
  std::memcpy(&descriptor, at, sizeof descriptor);
  return descriptor;
}

// The word tells the driver that the rest is there: last, and in one piece.
void store_word(std::byte* descriptor, std::uint32_t word) {
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(descriptor + offsetof(Descriptor, word), &word, sizeof word);
}

}  // namespace

Controller::Controller(unsigned hops, std::uint64_t seed) : hops_(hops), tx_(hops), rx_(hops), random_(seed) {
  if (hops < 2 || hops > kMostHops) throw std::invalid_argument("a controller has 2 to 64 hops");
  vectors_.fill(-1);
  reset();
}

void Controller::reset() {
  std::memset(bar_.data(), 0, kBarSize);
  bar_.set32(kCapabilities, hops_);
  for (auto* rings : {&tx_, &rx_}) {
    for (Ring& ring : *rings) ring = Ring{.stalled = ring.stalled};
  }
  pending_.fill(0);
  quiet_until_.fill(0);
}

void Controller::set_interrupt(unsigned vector, int fd) {
  if (vectors_.at(vector) >= 0) ::close(vectors_[vector]);
  vectors_[vector] = fd;
}

void Controller::clear_interrupts() {
  for (unsigned vector = 0; vector < kVectors; ++vector) set_interrupt(vector, -1);
}

void Controller::stall(bool transmit, unsigned ring, bool on) { (transmit ? tx_ : rx_).at(ring).stalled = on; }

void Controller::read(std::uint32_t offset, std::span<std::byte> data) {
  std::fill(data.begin(), data.end(), std::byte{0});
  if (offset >= kBarSize || data.empty()) return;
  const std::size_t size = std::min<std::size_t>(data.size(), kBarSize - offset);
  // Reading the status takes it, and only whole words of it can be read.
  if (offset >= kStatus && offset < kStatusClear && offset % kWord == 0 && size == kWord) {
    const std::uint32_t status = bar_.take32(offset);
    std::memcpy(data.data(), &status, kWord);
    return;
  }
  std::memcpy(data.data(), bar_.data() + offset, size);
}

void Controller::write(std::uint32_t offset, std::span<const std::byte> data) {
  if (offset >= kBarSize || data.empty()) return;
  const std::size_t size = std::min<std::size_t>(data.size(), kBarSize - offset);
  if (offset % kWord != 0 || size % kWord != 0) {  // half a doorbell; no other register is written so
    std::memcpy(bar_.data() + offset, data.data(), size);
    return;
  }
  for (std::size_t at = 0; at < size; at += kWord) {
    std::uint32_t value;
    std::memcpy(&value, data.data() + at, kWord);
    write32(offset + static_cast<std::uint32_t>(at), value);
  }
}

void Controller::write32(std::uint32_t offset, std::uint32_t value) {
  const auto ring_of = [&](std::uint32_t first) { return (offset - first) / kOptionsStride; };
  const auto is_options = [&](std::uint32_t first) {
    return offset >= first && ring_of(first) < hops_ && (offset - first) % kOptionsStride == 0;
  };
  if (is_options(kTxOptions)) {
    const unsigned hop = ring_of(kTxOptions);
    set_options(tx_[hop], tx_registers(hop), hop, value);
  } else if (is_options(kRxOptions)) {
    const unsigned hop = ring_of(kRxOptions);
    set_options(rx_[hop], rx_registers(hop), hops_ + hop, value);
  } else if (offset >= kStatusClear && offset < kStatusClear + 8) {
    bar_.clear32(offset - (kStatusClear - kStatus), value);
    return;
  } else if (offset >= kMaskClear && offset < kMaskClear + 8) {
    bar_.clear32(offset - (kMaskClear - kMask), value);
    return;
  } else if (offset == kCapabilities) {
    return;
  }
  bar_.set32(offset, value);
}

void Controller::set_options(Ring& ring, std::uint32_t registers, unsigned bit, std::uint32_t value) {
  ring.options = value;
  const bool enable = (value & kOptionEnable) != 0;
  if (enable == ring.enabled) return;
  ring.enabled = enable;
  ring.index = 0;
  if (enable) {
    ring.base = bar_.get64(registers + kRingBase);
    ring.size = bar_.get16(registers + kRingSize);
  } else {
    pending_[bit / 32] &= ~(1u << bit % 32);
  }
}

bool Controller::usable(const Ring& ring, std::uint32_t registers) const {
  return ring.enabled && !ring.stalled && ring.size != 0 && bar_.get16(registers + kRingSize) == ring.size &&
         bar_.get64(registers + kRingBase) == ring.base;
}

bool Controller::transmit(const Send& send) {
  bool moved = false;
  for (unsigned hop = 0; hop < hops_; ++hop) moved |= drain(hop, send);
  return moved;
}

bool Controller::drain(unsigned hop, const Send& send) {
  Ring& ring = tx_[hop];
  if (!ring.enabled) return false;
  const std::uint32_t registers = tx_registers(hop);
  // The index first: a driver that stops the ring takes the base away before it.
  const std::uint16_t produced = bar_.get16(registers + kRingIndices + 2);
  if (produced == ring.index || produced >= ring.size || !usable(ring, registers)) return false;
  bool moved = false;
  while (ring.index != produced) {
    const std::uint64_t at = ring.base + std::uint64_t{ring.index} * sizeof(Descriptor);
    std::byte* const place = memory_.writable(at, sizeof(Descriptor));
    if (place == nullptr) {
      ++counters_.bad_addresses;
      ring.index = produced;
      return moved;
    }
    const Descriptor descriptor = load(place);
    const std::uint32_t length = (descriptor.word & 0xfff) != 0 ? descriptor.word & 0xfff : kMostFrame;
    const std::byte* const data = memory_.readable(descriptor.address, length);
    if (data == nullptr) {
      ++counters_.bad_addresses;
    } else {
      const Frame frame{{data, length},
                        static_cast<std::uint8_t>(descriptor.word >> 12 & 15),
                        static_cast<std::uint8_t>(descriptor.word >> 16 & 15),
                        false};
      if (!send(hop, frame)) break;
      ++counters_.sent;
    }
    complete(ring, registers, place, descriptor.word | kFlagCompleted << kFlagShift, true);
    if ((descriptor.word >> kFlagShift & kFlagInterrupt) != 0) signal(hop);
    moved = true;
  }
  return moved;
}

void Controller::complete(Ring& ring, std::uint32_t registers, std::byte* descriptor, std::uint32_t word,
                          bool transmit) {
  store_word(descriptor, word);
  ring.index = static_cast<std::uint16_t>((ring.index + 1) % ring.size);
  bar_.set16(registers + kRingIndices + (transmit ? 0 : 2), ring.index);
}

std::uint16_t Controller::offered(unsigned hop) const { return bar_.get16(rx_registers(hop) + kRingIndices); }

unsigned Controller::room(unsigned hop) const {
  if (hop >= hops_) return 0;
  const Ring& ring = rx_[hop];
  const std::uint32_t registers = rx_registers(hop);
  const std::uint16_t given = offered(hop);
  if (given >= ring.size || !usable(ring, registers)) return 0;
  return (given + ring.size - ring.index) % ring.size;
}

bool Controller::runs() const {
  const auto enabled = [](const Ring& ring) { return ring.enabled; };
  return std::any_of(tx_.begin(), tx_.end(), enabled) || std::any_of(rx_.begin(), rx_.end(), enabled);
}

bool Controller::waits(unsigned hop) const {
  return hop < hops_ && rx_[hop].enabled && (rx_[hop].options & kOptionE2e) != 0;
}

void Controller::receive(unsigned hop, const Frame& frame) {
  if (hop >= hops_ || !rx_[hop].enabled) {
    ++counters_.unframed;
    return;
  }
  Ring& ring = rx_[hop];
  const std::uint32_t registers = rx_registers(hop);
  const bool raw = (ring.options & kOptionRaw) != 0;
  const std::uint32_t masks = bar_.get32(kRxOptions + hop * kOptionsStride + kPdfMasks);
  if (!raw && ((masks >> 16 >> frame.sof & 1) == 0 || (masks >> frame.eof & 1) == 0)) {
    ++counters_.unframed;
    return;
  }
  if (room(hop) == 0) {
    ++counters_.overflowed;
    const unsigned bit = 2 * hops_ + hop;
    bar_.or32(kStatus + bit / 32 * kWord, 1u << bit % 32);
    return;
  }
  const std::uint64_t at = ring.base + std::uint64_t{ring.index} * sizeof(Descriptor);
  std::byte* const place = memory_.writable(at, sizeof(Descriptor));
  if (place == nullptr) {
    ++counters_.bad_addresses;
    return;
  }
  const Descriptor descriptor = load(place);
  const std::uint32_t limit = bar_.get16(registers + kRingSize + 2) & 0xfff;
  const std::size_t size = std::min<std::size_t>(frame.data.size(), limit != 0 ? limit : kMostFrame);
  std::byte* const buffer = memory_.writable(descriptor.address, size);
  std::uint32_t flags = (descriptor.word >> kFlagShift & kFlagInterrupt) | kFlagCompleted;
  if (buffer == nullptr) {
    ++counters_.bad_addresses;
    flags |= kFlagOverrun;
  } else {
    std::memcpy(buffer, frame.data.data(), size);
    if (frame.corrupt) flags |= kFlagCrcError;
    if (size < frame.data.size()) flags |= kFlagOverrun;
    ++counters_.received;
  }
  const std::uint32_t word = static_cast<std::uint32_t>(size & 0xfff) | std::uint32_t{frame.eof} << 12 |
                             std::uint32_t{frame.sof} << 16 | flags << kFlagShift;
  complete(ring, registers, place, word, false);
  signal(hops_ + hop);
}

void Controller::signal(unsigned bit) {
  pending_[bit / 32] |= 1u << bit % 32;
  bar_.or32(kStatus + bit / 32 * kWord, 1u << bit % 32);
}

Time Controller::interrupt(Time now) {
  Time next = kNever;
  for (unsigned word = 0; word < pending_.size(); ++word) {
    if (pending_[word] == 0) continue;
    const std::uint32_t ready = pending_[word] & bar_.get32(kMask + word * kWord);
    for (unsigned bit = 0; bit < 32; ++bit) {
      if ((ready >> bit & 1) != 0 && issue(word * 32 + bit, now, next)) pending_[word] &= ~(1u << bit);
    }
  }
  return next;
}

bool Controller::issue(unsigned bit, Time now, Time& next) {
  const unsigned vector = bar_.get32(kVectorChoice + bit / 8 * kWord) >> bit % 8 * 4 & 15;
  if (now < quiet_until_[vector]) {
    next = std::min(next, quiet_until_[vector]);
    return false;
  }
  quiet_until_[vector] = now + Time{bar_.get32(kThrottling + vector * kWord) & 0xffff} * kThrottlingUnit;
  if ((bar_.get32(kDmaMisc) & kAutoClear) != 0) bar_.clear32(kStatus + bit / 32 * kWord, 1u << bit % 32);
  if (random_.happens(lose_)) {
    ++counters_.lost_interrupts;
    return true;
  }
  const std::uint64_t one = 1;
  if (vectors_[vector] >= 0 && ::write(vectors_[vector], &one, sizeof one) == sizeof one) ++counters_.interrupts;
  return true;
}

}  // namespace ferrule::usb4
