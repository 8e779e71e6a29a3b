// Interface of a queue pair: what a verbs pipe needs of the hardware, or of a test's stand-in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transports/channel.h"
#include "transports/device_memory.h"

namespace ferrule {

// A frame that landed in a receive slot.
struct Arrival {
  std::uint32_t slot;
  std::uint32_t bytes;
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;

  // Registered memory of the size that was asked for. It begins with the receive slots.
  virtual Bytes memory() = 0;
  // Post exactly these bytes of memory(), which must stay until they have left; only while there is room.
  virtual bool has_room() const = 0;
  virtual void send(ConstBytes frame) = 0;
  virtual void receive(std::span<const std::uint32_t> slots) = 0;
  // The same with `payload` of a device behind the frame, and a write of it to the peer's memory, which has arrived
  // when a frame that is sent later does. Both read the device's memory until completed() has reached what sent() is
  // then. Only on reliable queue pairs.
  virtual void send_with(ConstBytes frame, const DeviceBytes& payload) = 0;
  virtual void write(const DeviceBytes& payload, std::uint64_t remote_address, std::uint32_t remote_key) = 0;
  // Throws std::runtime_error.
  virtual std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory) = 0;
  // Nothing is sent or comes in any more.
  virtual void stop() = 0;
  // Take completions: what arrived, in order. Whatever else there is to know shows in the others.
  virtual std::size_t poll(std::span<Arrival> into) = 0;

  // At most so many sends are under way at a time.
  virtual std::size_t depth() const = 0;
  // Sends and writes so far, and those of them that are known to be under way no more: all up to the last one that was
  // reported. report() makes the next send such a frame.
  bool drained() const { return completed() == sent(); }
  virtual std::uint64_t sent() const = 0;
  virtual std::uint64_t completed() const = 0;
  virtual void report() = 0;
  // Whether frames arrive once and in order or the queue pair breaks; else each may be lost without a word.
  virtual bool reliable() const = 0;
  // Reason why it is broken; empty while it is not.
  virtual const std::string& fault() const = 0;

  // After arm() the next completion makes event_fd() readable, until take_events().
  virtual int event_fd() const = 0;
  virtual void arm() = 0;
  virtual void take_events() = 0;
};

}  // namespace ferrule
