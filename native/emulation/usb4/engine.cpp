#include "emulation/usb4/engine.h"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "wait/thread.h"

namespace ferrule::usb4 {

namespace {

using Clock = std::chrono::steady_clock;

// Doorbells are memory that is looked at. While frames move often, and otherwise about as often as a timer ticks: what
// waits in between is what interrupt moderation makes wait on hardware, too.
constexpr Time kBusyPause = 40'000;
constexpr Time kIdlePause = 500'000;
constexpr Time kSleep = 1'000'000'000;  // no ring to look at; starting one wakes
constexpr Time kBusyFor = 5'000'000;
constexpr unsigned long kTimerSlack = 1000;
constexpr std::size_t kMostControl = 512;
// Routers answer one request after the other. Linux tells two answers that came at the same time apart by nothing but
// their order, and wrongly if the first one is not dealt with yet; an emulated guest takes long for that.
constexpr Time kBetweenControl = 1'000'000;
constexpr Time kMostControlHeld = 50'000'000;

Time since_start() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

Engine::Wake::~Wake() {
  engine.awake_ = true;
  engine.woken_.notify_one();
}

Engine::Engine() {
  control_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (control_event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = start_thread("usb4", [this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard guard(mutex_);
    ends_ = true;
    woken_.notify_one();
  }
  thread_.join();
  for (const auto& controller : controllers_) controller->clear_interrupts();
  ::close(control_event_);
}

unsigned Engine::add_controller(unsigned hops) {
  const std::lock_guard guard(mutex_);
  controllers_.push_back(std::make_unique<Controller>(hops, controllers_.size()));
  to_guests_.emplace_back();
  return static_cast<unsigned>(controllers_.size() - 1);
}

unsigned Engine::add_wire(std::uint64_t seed, std::uint32_t interface) {
  const std::lock_guard guard(mutex_);
  auto deliver = [this](const Target& target, const Frame& frame) {
    controllers_[target.controller]->receive(target.ring, frame);
  };
  auto watched = [this, interface](const Target& target, const Frame& frame, Fate fate) {
    watch(interface, target, frame, fate);
  };
  cables_.push_back({std::make_unique<Wire>(seed, std::move(deliver), std::move(watched)), interface});
  return static_cast<unsigned>(cables_.size() - 1);
}

void Engine::reset(unsigned controller) {
  const std::lock_guard guard(mutex_);
  controllers_.at(controller)->reset();
  to_guests_[controller] = {};
  std::erase_if(from_guests_, [&](const ControlPacket& packet) { return packet.controller == controller; });
}

void Engine::forget_memory(unsigned controller) {
  const std::lock_guard guard(mutex_);
  controllers_.at(controller)->memory().clear();
  controllers_[controller]->clear_interrupts();
}

void Engine::connect(unsigned controller, unsigned ring, unsigned wire, const Target& target) {
  const std::lock_guard guard(mutex_);
  const Wake wake{*this};
  controllers_.at(controller);
  controllers_.at(target.controller);
  cables_.at(wire);
  paths_[{controller, ring}] = {wire, target};
}

void Engine::disconnect(unsigned controller, unsigned ring) {
  const std::lock_guard guard(mutex_);
  paths_.erase({controller, ring});
}

std::optional<ControlPacket> Engine::take_control() {
  const std::lock_guard guard(mutex_);
  if (from_guests_.empty()) {
    std::uint64_t rung;
    (void)!::read(control_event_, &rung, sizeof rung);
    return std::nullopt;
  }
  ControlPacket packet = std::move(from_guests_.front());
  from_guests_.pop_front();
  return packet;
}

void Engine::send_control(ControlPacket packet) {
  const std::lock_guard guard(mutex_);
  const Wake wake{*this};
  auto& waiting = to_guests_.at(packet.controller).waiting;
  const unsigned controller = packet.controller;
  if (waiting.size() < kMostControl && controllers_[controller]->receives(0)) waiting.push_back(std::move(packet));
  deliver_control(controller, since_start());
}

void Engine::run() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlack, 0, 0, 0);
  std::unique_lock lock(mutex_);
  Time busy_until = 0;
  while (!ends_) {
    const Time now = since_start();
    Time next = kNever;
    awake_ = false;
    if (pass(now, next)) busy_until = now + kBusyFor;
    const auto runs = [](const auto& controller) { return controller->runs(); };
    const bool looks = std::any_of(controllers_.begin(), controllers_.end(), runs);
    const Time pause = now < busy_until ? kBusyPause : looks ? kIdlePause : kSleep;
    if (pause != kBusyPause) trace_.flush();
    const Time until = std::min(next, since_start() + pause);
    woken_.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(until)), [this] { return awake_ || ends_; });
  }
}

bool Engine::pass(Time now, Time& next) {
  bool moved = false;
  for (const Cable& cable : cables_) cable.wire->pump(now);
  for (unsigned each = 0; each < controllers_.size(); ++each) {
    moved |=
        controllers_[each]->transmit([&](unsigned hop, const Frame& frame) { return send(each, hop, frame, now); });
    next = std::min(next, deliver_control(each, now));
  }
  for (const auto& controller : controllers_) next = std::min(next, controller->interrupt(now));
  for (const Cable& cable : cables_) next = std::min(next, cable.wire->next());
  return moved;
}

bool Engine::send(unsigned controller, unsigned hop, const Frame& frame, Time now) {
  if (hop == 0) return offer_control(controller, frame);
  const auto path = paths_.find({controller, hop});
  if (path == paths_.end()) {
    controllers_[controller]->count_unrouted();
    return true;
  }
  const Target& target = path->second.target;
  Wire& wire = *cables_[path->second.wire].wire;
  const Controller& other = *controllers_[target.controller];
  // End-to-end flow control: the receiver grants its descriptors as credits.
  if (other.waits(target.ring) && other.room(target.ring) <= under_way(target)) return false;
  if (!wire.ready(now)) return false;
  wire.send(target, frame, now);
  return true;
}

unsigned Engine::under_way(const Target& target) const {
  unsigned count = 0;
  for (const Cable& cable : cables_) count += cable.wire->under_way(target);
  return count;
}

bool Engine::offer_control(unsigned controller, const Frame& frame) {
  if (from_guests_.size() >= kMostControl) return false;
  from_guests_.push_back({controller, frame.eof, {frame.data.begin(), frame.data.end()}});
  const std::uint64_t one = 1;
  (void)!::write(control_event_, &one, sizeof one);
  return true;
}

Time Engine::deliver_control(unsigned controller, Time now) {
  ToGuest& guest = to_guests_[controller];
  Controller& there = *controllers_[controller];
  if (guest.told && (there.offered(0) != guest.offered || now - guest.at >= kMostControlHeld)) {
    guest.told = false;
    guest.next = now + kBetweenControl;
  }
  if (guest.waiting.empty()) return kNever;
  if (guest.told) return guest.at + kMostControlHeld;
  if (now < guest.next) return guest.next;
  if (there.room(0) == 0) return kNever;
  const ControlPacket& packet = guest.waiting.front();
  guest.told = true;
  guest.offered = there.offered(0);
  guest.at = now;
  there.receive(0, {packet.data, static_cast<std::uint8_t>(packet.kind), 0, false});
  guest.waiting.pop_front();
  return guest.waiting.empty() ? kNever : guest.at + kMostControlHeld;
}

void Engine::watch(std::uint32_t interface, const Target& target, const Frame& frame, Fate fate) {
  if (!trace_.is_open()) return;
  std::uint16_t flags = frame.corrupt ? kTraceCorrupt : std::uint16_t{0};
  if (fate == Fate::dropped) flags |= kTraceDropped;
  trace_.add(
      interface,
      {.kind = 1, .flags = flags, .hop = static_cast<std::uint16_t>(target.hop), .sof = frame.sof, .eof = frame.eof},
      frame.data);
}

}  // namespace ferrule::usb4
