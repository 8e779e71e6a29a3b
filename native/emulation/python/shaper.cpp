#include "emulation/python/shaper.h"

#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "python/text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

// The interpreter goes on meanwhile: the shaper's thread may be busy.
template <class Call>
void checked(Call&& call) {
  ErrorText error{};
  ferrule_status status;
  {
    const nb::gil_scoped_release release;
    status = call(error.data(), error.size());
  }
  if (status == FERRULE_INVALID) throw nb::value_error(error.data());
  if (status != FERRULE_OK) throw std::runtime_error(error.data());
}

}  // namespace

PyShaper::PyShaper(int threads) {
  checked([&](char* error, std::size_t size) { return ferrule_shaper_create(threads, &shaper_, error, size); });
}

ferrule_shaper* PyShaper::open() {
  if (shaper_ == nullptr) throw std::runtime_error("the shaper is closed");
  return shaper_;
}

int PyShaper::join(const std::vector<int>& fds, std::uint64_t seed) {
  int cable = -1;
  ferrule_shaper* const shaper = open();
  checked([&](char* error, std::size_t size) {
    return ferrule_shaper_join(shaper, fds.data(), static_cast<int>(fds.size()), seed, &cable, error, size);
  });
  return cable;
}

void PyShaper::part(int cable) {
  ferrule_shaper* const shaper = open();
  checked([&](char* error, std::size_t size) { return ferrule_shaper_part(shaper, cable, error, size); });
}

void PyShaper::set(int cable, int end, double rate, double delay, double jitter, double loss, double corrupt,
                   double duplicate, double reorder, double collapse, std::uint64_t queue, std::uint32_t overhead,
                   int flow) {
  const ferrule_shape shape{rate,    delay,    jitter, loss,     corrupt, duplicate,
                            reorder, collapse, queue,  overhead, static_cast<ferrule_flow>(flow)};
  ferrule_shaper* const shaper = open();
  checked([&](char* error, std::size_t size) { return ferrule_shaper_set(shaper, cable, end, &shape, error, size); });
}

void PyShaper::clear(int cable) {
  ferrule_shaper* const shaper = open();
  checked([&](char* error, std::size_t size) { return ferrule_shaper_clear(shaper, cable, error, size); });
}

nb::dict PyShaper::read(int cable, int end) {
  ferrule_shape_counters now{};
  ferrule_shaper* const shaper = open();
  checked([&](char* error, std::size_t size) { return ferrule_shaper_read(shaper, cable, end, &now, error, size); });
  nb::dict named;
  named["frames"] = now.frames;
  named["bytes"] = now.bytes;
  named["delivered_frames"] = now.delivered_frames;
  named["delivered_bytes"] = now.delivered_bytes;
  named["overflowed"] = now.overflowed;
  named["lost"] = now.lost;
  named["cut"] = now.cut;
  named["corrupted"] = now.corrupted;
  named["duplicated"] = now.duplicated;
  named["reordered"] = now.reordered;
  named["queued_bytes"] = now.queued_bytes;
  named["missed"] = now.missed;
  named["unsent"] = now.unsent;
  named["latest"] = now.latest;
  return named;
}

void PyShaper::close() {
  ferrule_shaper* const shaper = std::exchange(shaper_, nullptr);
  const nb::gil_scoped_release release;
  if (shaper != nullptr) ferrule_shaper_destroy(shaper);
}

void bind_shaper(nb::module_& module) {
  nb::class_<PyShaper>(module, "Shaper")
      .def(nb::init<int>(), "threads"_a = 0)
      .def("join", &PyShaper::join, "fds"_a, "seed"_a)
      .def("part", &PyShaper::part, "cable"_a)
      .def("set", &PyShaper::set, "cable"_a, "end"_a, nb::kw_only(), "rate"_a, "delay"_a, "jitter"_a, "loss"_a,
           "corrupt"_a, "duplicate"_a, "reorder"_a, "collapse"_a, "queue"_a, "overhead"_a, "flow"_a)
      .def("clear", &PyShaper::clear, "cable"_a)
      .def("read", &PyShaper::read, "cable"_a, "end"_a)
      .def("close", &PyShaper::close);
}

}  // namespace ferrule
