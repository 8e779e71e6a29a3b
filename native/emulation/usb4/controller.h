// The host interface of an emulated USB4 controller: registers, descriptor rings, interrupts. What its guest writes,
// anywhere and at any time, reaches nothing but the guest's own memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "emulation/usb4/bar.h"
#include "emulation/usb4/guest_memory.h"
#include "emulation/usb4/wire.h"

namespace ferrule::usb4 {

struct ControllerCounters {
  std::uint64_t sent = 0;           // frames of Tx rings
  std::uint64_t received = 0;       // frames put into Rx rings
  std::uint64_t unrouted = 0;       // sent on rings that no path begins at
  std::uint64_t overflowed = 0;     // lost because an Rx ring had no descriptor
  std::uint64_t unframed = 0;       // lost because an Rx ring was off, or its masks did not allow their PDF values
  std::uint64_t bad_addresses = 0;  // descriptors and buffers outside the guest's memory
  std::uint64_t interrupts = 0;
  std::uint64_t lost_interrupts = 0;  // by fault
};

class Controller {
 public:
  // Handler of a frame of Tx ring `hop`; false: not now, keep it.
  using Send = std::function<bool(unsigned hop, const Frame&)>;

  Controller(unsigned hops, std::uint64_t seed);

  unsigned hops() const { return hops_; }
  Bar& bar() { return bar_; }
  GuestMemory& memory() { return memory_; }
  const ControllerCounters& counters() const { return counters_; }

  // Registers as the guest sees them, `data.size()` bytes from `offset`; beyond their end there are zeros.
  void read(std::uint32_t offset, std::span<std::byte> data);
  void write(std::uint32_t offset, std::span<const std::byte> data);
  void reset();

  // The event of an interrupt vector, or -1; takes it over.
  void set_interrupt(unsigned vector, int fd);
  void clear_interrupts();

  void stall(bool transmit, unsigned ring, bool on);
  void lose_interrupts(double chance) { lose_ = chance; }

  // Send what Tx rings hold; whether anything moved.
  bool transmit(const Send& send);
  void count_unrouted() { ++counters_.unrouted; }
  // Put a frame into an Rx ring; whether it was taken or lost, and need not be offered again.
  void receive(unsigned ring, const Frame& frame);
  // Descriptors that an Rx ring has for frames, and whether its senders must wait for them.
  unsigned room(unsigned ring) const;
  bool waits(unsigned ring) const;
  // The driver's index of an Rx ring: moves when it gives descriptors.
  std::uint16_t offered(unsigned ring) const;
  // Whether its driver has started any ring.
  bool runs() const;
  bool receives(unsigned ring) const { return ring < hops_ && rx_[ring].enabled; }
  // Raise what is due; when something will be.
  Time interrupt(Time now);

 private:
  struct Ring {
    bool enabled = false;
    bool stalled = false;
    std::uint32_t options = 0;
    std::uint64_t base = 0;
    std::uint16_t size = 0;
    std::uint16_t index = 0;
  };

  void write32(std::uint32_t offset, std::uint32_t value);
  void set_options(Ring& ring, std::uint32_t registers, unsigned bit, std::uint32_t value);
  // Whether the driver's registers still say what they said when the ring was started: it takes them away when it
  // stops a ring, and must not be written to from then on.
  bool usable(const Ring& ring, std::uint32_t registers) const;
  bool drain(unsigned hop, const Send& send);
  void complete(Ring& ring, std::uint32_t registers, std::byte* descriptor, std::uint32_t word, bool transmit);
  void signal(unsigned bit);
  bool issue(unsigned bit, Time now, Time& next);

  const unsigned hops_;
  Bar bar_;
  GuestMemory memory_;
  std::vector<Ring> tx_;
  std::vector<Ring> rx_;
  std::array<int, kVectors> vectors_;
  std::array<Time, kVectors> quiet_until_{};  // interrupt moderation
  std::array<std::uint32_t, (2 * kMostHops + 31) / 32> pending_{};
  double lose_ = 0;
  shaper::Random random_;
  ControllerCounters counters_;
};

}  // namespace ferrule::usb4
