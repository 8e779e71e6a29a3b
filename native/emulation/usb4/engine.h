// Emulated USB4 controllers and the cables between them: one thread moves frames from the rings of one guest to those
// of another, and hands what comes on ring 0 (control packets) to the owner of this object.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "emulation/usb4/controller.h"
#include "emulation/usb4/trace.h"
#include "emulation/usb4/wire.h"

namespace ferrule::usb4 {

struct ControlPacket {
  unsigned controller = 0;
  unsigned kind = 0;  // the frame's PDF value
  std::vector<std::byte> data;
};

// Each function may be called from any thread. Throws std::out_of_range for a controller, wire or ring that is not
// there.
class Engine {
 public:
  Engine();
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  unsigned add_controller(unsigned hops);
  // `interface`: of the trace.
  unsigned add_wire(std::uint64_t seed, std::uint32_t interface);

  // Runs `use(Controller&)` while the engine's thread does not, and wakes that; the same for a wire and the trace.
  template <class Use>
  auto with(unsigned controller, Use&& use) {
    const std::lock_guard guard(mutex_);
    const Wake wake{*this};
    return use(*controllers_.at(controller));
  }
  template <class Use>
  auto with_wire(unsigned wire, Use&& use) {
    const std::lock_guard guard(mutex_);
    const Wake wake{*this};
    return use(*cables_.at(wire).wire);
  }
  template <class Use>
  auto with_trace(Use&& use) {
    const std::lock_guard guard(mutex_);
    return use(trace_);
  }
  // The guest of this controller is gone, or starts anew.
  void reset(unsigned controller);
  void forget_memory(unsigned controller);

  // Frames of this Tx ring go over a wire to an Rx ring, with this HopID on the cable.
  void connect(unsigned controller, unsigned ring, unsigned wire, const Target& target);
  void disconnect(unsigned controller, unsigned ring);

  // Readable when there are control packets.
  int control_event() const { return control_event_; }
  std::optional<ControlPacket> take_control();
  // To a guest's ring 0, when it has room there and has dealt with the one before. Those beyond a few hundred are lost,
  // as are those of a ring that is off.
  void send_control(ControlPacket packet);

 private:
  struct Wake {
    Engine& engine;
    ~Wake();
  };
  struct Path {
    unsigned wire;
    Target target;
  };
  struct Cable {
    std::unique_ptr<Wire> wire;
    std::uint32_t interface;
  };
  struct ToGuest {
    std::deque<ControlPacket> waiting;
    bool told = false;  // its driver has one, and has not given a descriptor since
    std::uint16_t offered = 0;
    Time at = 0;    // when it got that one
    Time next = 0;  // when it may get another one
  };

  void run();
  // Move what can be moved; whether anything was, and when there is something to do again.
  bool pass(Time now, Time& next);
  bool send(unsigned controller, unsigned hop, const Frame& frame, Time now);
  bool offer_control(unsigned controller, const Frame& frame);
  // Returns when it is to be called again.
  Time deliver_control(unsigned controller, Time now);
  unsigned under_way(const Target& target) const;
  void watch(std::uint32_t interface, const Target& target, const Frame& frame, Fate fate);

  std::mutex mutex_;
  std::condition_variable woken_;
  bool awake_ = false;
  bool ends_ = false;
  std::vector<std::unique_ptr<Controller>> controllers_;
  std::vector<Cable> cables_;
  std::map<std::pair<unsigned, unsigned>, Path> paths_;  // by controller and Tx ring
  std::deque<ControlPacket> from_guests_;
  std::vector<ToGuest> to_guests_;  // by controller
  int control_event_ = -1;
  Trace trace_;
  std::thread thread_;
};

}  // namespace ferrule::usb4
