// libFuzzer: whatever a guest writes to the registers of its emulated USB4 controller and into its memory, at any time,
// the controller touches nothing but that memory. Build and run it like fuzz_group.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "emulation/usb4/controller.h"
#include "fuzz/fuzz_input.h"

namespace {

using namespace ferrule::usb4;

constexpr std::uint64_t kMemory = 4 * kPage;
constexpr std::uint64_t kAddress = 0x10000;
constexpr unsigned kHops = 3;

// Two guests of two pages of memory each, and nothing behind them: the file goes on, the mapping does not.
struct Guest {
  Guest() : controller(kHops, 1), fd(::memfd_create("guest", MFD_CLOEXEC)) {
    if (fd < 0 || ::ftruncate(fd, kMemory) != 0) std::abort();
    void* const all = ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all == MAP_FAILED) std::abort();
    memory = static_cast<std::byte*>(all);
    controller.memory().map(kAddress, 2 * kPage, fd, kPage, true);
    controller.set_interrupt(0, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  ~Guest() {
    controller.clear_interrupts();
    ::munmap(memory, kMemory);
    ::close(fd);
  }
  // The pages of the file around those that are mapped are as they were.
  void check() const {
    const auto untouched = [](std::byte each) { return each == std::byte{0}; };
    if (!std::all_of(memory, memory + kPage, untouched)) std::abort();
    if (!std::all_of(memory + 3 * kPage, memory + kMemory, untouched)) std::abort();
  }

  Controller controller;
  int fd;
  std::byte* memory = nullptr;
};

std::uint32_t some_register(Input& input) {
  const unsigned ring = input.byte() % (kHops + 1);
  constexpr std::array<std::uint32_t, 6> kOthers{kStatus, kStatusClear, kMask, kMaskClear, kThrottling, kVectorChoice};
  switch (input.byte() % 6) {
    case 0:
      return kTxRings + ring * kRingStride + input.byte() % 4 * 4;
    case 1:
      return kRxRings + ring * kRingStride + input.byte() % 4 * 4;
    case 2:
      return kTxOptions + ring * kOptionsStride + input.byte() % 2 * 4;
    case 3:
      return kRxOptions + ring * kOptionsStride + input.byte() % 2 * 4;
    case 4:
      return kOthers[input.byte() % kOthers.size()] + input.byte() % 3 * 4;
    default:
      return input.take<std::uint32_t>() % (kBarSize + 64);
  }
}

// Addresses in the guest's memory more often than not, and at its edges.
std::uint64_t some_address(Input& input) {
  if (input.byte() % 4 == 0) return input.take<std::uint64_t>();
  return kAddress + input.take<std::uint16_t>() % (2 * kPage + 64) - 32;
}

void write_word(Controller& controller, std::uint32_t offset, std::uint32_t value) {
  std::array<std::byte, 4> bytes;
  std::memcpy(bytes.data(), &value, sizeof value);
  controller.write(offset, bytes);
}

void start_ring(Controller& controller, Input& input) {
  const unsigned ring = input.byte() % kHops;
  const bool transmit = input.byte() % 2 != 0;
  const std::uint32_t registers = (transmit ? kTxRings : kRxRings) + ring * kRingStride;
  const std::uint64_t base = some_address(input);
  write_word(controller, registers, static_cast<std::uint32_t>(base));
  write_word(controller, registers + 4, static_cast<std::uint32_t>(base >> 32));
  write_word(controller, registers + kRingSize, input.byte() | std::uint32_t{input.byte()} << 16);
  const std::uint32_t options = (transmit ? kTxOptions : kRxOptions) + ring * kOptionsStride;
  write_word(controller, options + kPdfMasks, input.byte() % 2 != 0 ? 0xffffffff : input.take<std::uint32_t>());
  write_word(controller, options, kOptionEnable | std::uint32_t{input.byte()} << 23);
  write_word(controller, registers + kRingIndices, input.byte() | std::uint32_t{input.byte()} << 16);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  std::array<Guest, 2> guests;
  const auto receive = [&](const Target& target, const Frame& frame) {
    guests[target.controller].controller.receive(target.ring, frame);
  };
  Wire wire(1, receive, [](const Target&, const Frame&, Fate) {});
  Time now = 0;
  while (!input.empty()) {
    const unsigned which = input.byte() % 2;
    Guest& guest = guests[which];
    Controller& controller = guest.controller;
    switch (input.byte() % 8) {
      case 0:
        write_word(controller, some_register(input), input.take<std::uint32_t>());
        break;
      case 1:
        start_ring(controller, input);
        break;
      case 2: {
        const Descriptor descriptor{some_address(input), input.take<std::uint32_t>(), 0};
        std::memcpy(guest.memory + kPage + input.byte() * sizeof descriptor, &descriptor, sizeof descriptor);
        break;
      }
      case 3: {
        std::vector<std::byte> into(input.byte());
        controller.read(some_register(input), into);
        break;
      }
      case 4: {
        const auto bytes = input.some(input.byte());
        controller.write(some_register(input), std::as_bytes(bytes));
        break;
      }
      case 5: {
        const double chance = input.byte() / 255.0;
        wire.shape({input.byte() * 1e6, input.byte() * 1000, 0, chance, chance, chance, false});
        break;
      }
      case 6:
        if (input.byte() % 8 == 0) controller.reset();
        controller.stall(input.byte() % 2 != 0, input.byte() % kHops, input.byte() % 4 == 0);
        break;
      default: {
        now += input.take<std::uint16_t>();
        controller.transmit([&](unsigned hop, const Frame& frame) {
          const Target target{1 - which, hop, 8};
          const Controller& other = guests[target.controller].controller;
          if ((other.waits(hop) && other.room(hop) <= wire.under_way(target)) || !wire.ready(now)) return false;
          wire.send(target, frame, now);
          return true;
        });
        wire.pump(now);
        controller.interrupt(now);
      }
    }
  }
  wire.pump(kNever);
  for (const Guest& guest : guests) guest.check();
  return 0;
}
