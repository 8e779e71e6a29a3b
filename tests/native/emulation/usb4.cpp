// Frames pass between two emulated USB4 controllers while everything around them changes: cables, faults, memory.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "emulation/usb4/engine.h"
#include "testing.h"

namespace {

using namespace ferrule::usb4;

constexpr std::uint64_t kAddress = 0x100000;
constexpr std::size_t kMemory = 64 * kPage;
constexpr std::uint16_t kSize = 16;
constexpr unsigned kRing = 1;
constexpr unsigned kFrames = 3000;
constexpr auto kDeadline = std::chrono::seconds(60);

// A guest's side of one ring, which writes to its memory through a mapping of its own, as an emulator does.
class Guest {
 public:
  Guest(Engine& engine, bool transmit) : engine_(engine), transmit_(transmit), controller_(engine.add_controller(3)) {
    fd_ = ::memfd_create("guest", MFD_CLOEXEC);
    CHECK(fd_ >= 0 && ::ftruncate(fd_, kMemory) == 0);
    memory_ = static_cast<std::byte*>(::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    engine.with(controller_, [&](Controller& each) {
      each.memory().map(kAddress, kMemory, fd_, 0, true);
      each.set_interrupt(0, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    });
    const std::uint32_t registers = (transmit ? kTxRings : kRxRings) + kRing * kRingStride;
    const std::uint32_t options = (transmit ? kTxOptions : kRxOptions) + kRing * kOptionsStride;
    write(registers, kAddress);
    write(registers + kRingSize, kSize);
    write(kMask, 0xffffffff);
    write(options + kPdfMasks, 0xffffffff);
    write(options, kOptionEnable | (transmit ? 0 : kOptionE2e));
  }
  ~Guest() {
    ::munmap(memory_, kMemory);
    ::close(fd_);
  }

  unsigned controller() const { return controller_; }
  bool completed(std::uint16_t index) const { return (word(index).load() >> kFlagShift & kFlagCompleted) != 0; }
  std::uint32_t number(std::uint16_t index) const {
    std::uint32_t number;
    std::memcpy(&number, buffer(index), sizeof number);
    return number;
  }
  void post(std::uint16_t index, std::uint32_t number) {
    std::memcpy(buffer(index), &number, sizeof number);
    const std::uint64_t address = kAddress + (index + 1) * kPage;
    std::memcpy(memory_ + index * sizeof(Descriptor), &address, sizeof address);
    word(index).store(64 | 3 << 12 | 2 << 16 | kFlagInterrupt << kFlagShift);
  }
  void ring(std::uint16_t index) {
    const std::uint32_t registers = (transmit_ ? kTxRings : kRxRings) + kRing * kRingStride;
    write(registers + kRingIndices, transmit_ ? std::uint32_t{index} << 16 : index);
  }
  void write(std::uint32_t offset, std::uint64_t value) {
    std::array<std::byte, 4> bytes;
    std::memcpy(bytes.data(), &value, bytes.size());
    engine_.with(controller_, [&](Controller& each) { each.write(offset, bytes); });
  }

 private:
  std::byte* buffer(std::uint16_t index) const { return memory_ + (index + 1) * kPage; }
  std::atomic_ref<std::uint32_t> word(std::uint16_t index) const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(memory_ + index * sizeof(Descriptor) + 8));
  }

  Engine& engine_;
  const bool transmit_;
  const unsigned controller_;
  int fd_ = -1;
  std::byte* memory_ = nullptr;
};

std::uint16_t after(std::uint16_t index) { return static_cast<std::uint16_t>((index + 1) % kSize); }

}  // namespace

int main() {
  Engine engine;
  Guest sender(engine, true);
  Guest receiver(engine, false);
  const unsigned wire = engine.add_wire(1, 0);
  const unsigned other = engine.add_wire(2, 1);
  engine.connect(sender.controller(), kRing, wire, {receiver.controller(), kRing, 8});

  std::atomic<bool> ends{false};
  std::thread meddler([&] {
    for (unsigned round = 0; !ends; ++round) {
      engine.with_wire(wire, [&](Wire& each) {
        each.shape({.rate = round % 3 == 0 ? 1e9 : 0, .delay = round % 2 == 0 ? 20'000 : 0});
      });
      engine.with_wire(other, [&](Wire& each) { each.shape({.drop = 0.5}); });
      engine.connect(sender.controller(), 2, other, {receiver.controller(), 2, 9});
      engine.disconnect(sender.controller(), 2);
      (void)engine.with_wire(wire, [](Wire& each) { return each.counters(); });
      (void)engine.take_control();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });

  for (std::uint16_t index = 0; index + 1 < kSize; ++index) receiver.post(index, 0);
  receiver.ring(kSize - 1);
  std::uint16_t posted = kSize - 1, taken = 0, filled = 0;
  unsigned sent = 0, received = 0;
  const auto start = std::chrono::steady_clock::now();
  while (received < kFrames) {
    CHECK(std::chrono::steady_clock::now() - start < kDeadline);
    if (sent < kFrames && (sent < kSize - 1u || sender.completed(after(filled)))) {
      sender.post(filled, sent++);
      filled = after(filled);
      sender.ring(filled);
    }
    if (receiver.completed(taken)) {
      CHECK(receiver.number(taken) == received);
      ++received;
      receiver.post(posted, 0);
      posted = after(posted);
      taken = after(taken);
      receiver.ring(posted);
    } else {
      std::this_thread::yield();
    }
  }
  ends = true;
  meddler.join();
  CHECK(engine.with_wire(wire, [](Wire& each) { return each.counters(); }).delivered == kFrames);
  std::puts("usb4: ok");
}
