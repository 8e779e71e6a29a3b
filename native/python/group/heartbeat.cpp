#include "python/group/heartbeat.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "python/text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {

PyHeartbeat::PyHeartbeat(int rank, int size, std::uint64_t epoch, double interval, double limit) : size_(size) {
  ErrorText error{};
  const ferrule_status status =
      ferrule_heartbeat_create(rank, size, epoch, interval, limit, &heartbeat_, error.data(), error.size());
  if (status == FERRULE_INVALID) throw nb::value_error(error.data());
  if (status != FERRULE_OK) throw std::runtime_error(error.data());
}

PyHeartbeat::~PyHeartbeat() {
  const nb::gil_scoped_release release;
  ferrule_heartbeat_destroy(heartbeat_);
}

void PyHeartbeat::add(int peer, int rail, int fd, const std::string& link, int via) {
  const ferrule_status status = ferrule_heartbeat_add(heartbeat_, peer, rail, fd, link.c_str(), via);
  if (status == FERRULE_INVALID) throw nb::value_error("there is no such peer or rail");
  if (status != FERRULE_OK) throw std::bad_alloc();
}

std::vector<std::pair<std::string, double>> PyHeartbeat::peers() const {
  static constexpr const char* kNames[] = {"self", "absent", "alive", "left", "lost"};
  std::vector<std::pair<std::string, double>> all;
  for (int peer = 0; peer < size_; ++peer) {
    const ferrule_peer_health health = ask(peer);
    all.emplace_back(kNames[health.presence], health.silent);
  }
  return all;
}

std::vector<bool> PyHeartbeat::rails(int peer) const {
  const ferrule_peer_health health = ask(peer);
  std::vector<bool> alive;
  for (int rail = 0; rail < health.rails; ++rail) alive.push_back((health.rails_alive >> rail & 1) != 0);
  return alive;
}

nb::dict PyHeartbeat::lost() const {
  nb::dict all;
  for (int peer = 0; peer < size_; ++peer) {
    const ferrule_peer_health health = ask(peer);
    if (health.presence == FERRULE_LOST) all[nb::int_(peer)] = text_of(health.words);
  }
  return all;
}

void PyHeartbeat::close() {
  const nb::gil_scoped_release release;
  ferrule_heartbeat_close(heartbeat_);
}

ferrule_peer_health PyHeartbeat::ask(int peer) const {
  ferrule_peer_health health;
  if (ferrule_heartbeat_peer(heartbeat_, peer, &health) != FERRULE_OK) throw nb::index_error("there is no such peer");
  return health;
}

void bind_heartbeat(nb::module_& module) {
  nb::class_<PyHeartbeat>(module, "Heartbeat")
      .def(nb::init<int, int, std::uint64_t, double, double>(), "rank"_a, "size"_a, "epoch"_a, "interval"_a, "limit"_a)
      .def("add", &PyHeartbeat::add, "peer"_a, "rail"_a, "fd"_a, "link"_a, "via"_a = -1)
      .def("peers", &PyHeartbeat::peers)
      .def("rails", &PyHeartbeat::rails, "peer"_a)
      .def("lost", &PyHeartbeat::lost)
      .def("close", &PyHeartbeat::close);
}

}  // namespace ferrule
