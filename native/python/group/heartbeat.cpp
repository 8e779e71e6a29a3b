#include "liveness/heartbeat.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "python/group/group.h"
#include "python/text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {

PyHeartbeat::PyHeartbeat(int rank, int size, std::uint64_t epoch, double interval, double limit)
    : shared_(std::make_shared<Heartbeat>(Heartbeat::Settings{rank, size, epoch, seconds(interval), seconds(limit)})) {}

PyHeartbeat::~PyHeartbeat() {
  const nb::gil_scoped_release release;
  shared_.reset();
}

namespace {

std::vector<std::pair<std::string, double>> peers(const PyHeartbeat& heartbeat) {
  static constexpr const char* kNames[] = {"self", "absent", "alive", "left", "lost"};
  std::vector<std::pair<std::string, double>> all;
  for (int peer = 0; peer < heartbeat->size(); ++peer) {
    const Heartbeat::Health health = heartbeat->health(peer);
    const double silence = health.silence == Clock::duration::max()
                               ? std::numeric_limits<double>::infinity()
                               : std::chrono::duration<double>(health.silence).count();
    all.emplace_back(kNames[static_cast<std::size_t>(health.presence)], silence);
  }
  return all;
}

nb::dict lost(const PyHeartbeat& heartbeat) {
  nb::dict all;
  for (int peer = 0; peer < heartbeat->size(); ++peer) {
    const Heartbeat::Health health = heartbeat->health(peer);
    if (health.presence == Presence::lost) all[nb::int_(peer)] = text_of(health.reason);
  }
  return all;
}

std::vector<bool> rails(const PyHeartbeat& heartbeat, int peer) {
  if (peer < 0 || peer >= heartbeat->size()) throw nb::index_error("there is no such peer");
  return heartbeat->health(peer).rails;
}

void add(const PyHeartbeat& heartbeat, int peer, int rail, int fd, const std::string& name, int via) {
  heartbeat->add(peer, static_cast<std::size_t>(rail), fd, name, via);
}

}  // namespace

void bind_heartbeat(nb::module_& module) {
  nb::class_<PyHeartbeat>(module, "Heartbeat")
      .def(nb::init<int, int, std::uint64_t, double, double>(), "rank"_a, "size"_a, "epoch"_a, "interval"_a, "limit"_a)
      .def("add", &add, "peer"_a, "rail"_a, "fd"_a, "name"_a, "via"_a = -1)
      .def("peers", &peers)
      .def("rails", &rails, "peer"_a)
      .def("lost", &lost)
      .def("close", [](const PyHeartbeat& heartbeat) {
        const nb::gil_scoped_release release;
        heartbeat->close();
      });
}

}  // namespace ferrule
