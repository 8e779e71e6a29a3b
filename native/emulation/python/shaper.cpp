#include "emulation/python/bindings.h"

#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "emulation/shaper/shaper.h"
#include "python/owned.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

using shaper::Flow;
using shaper::Shape;
using shaper::Shaper;
using shaper::Worker;
using PyShaper = Owned<Shaper>;

constexpr double kNanoseconds = 1e9;
constexpr double kLongestSeconds = 3600;
constexpr std::size_t kMostEnds = 1024;

bool is_chance(double value) { return value >= 0 && value <= 1; }
bool is_short(double seconds) { return seconds >= 0 && seconds <= kLongestSeconds; }

int join(const PyShaper& self, const std::vector<int>& fds, std::uint64_t seed) {
  Shaper& shaper = self.get();
  if (fds.size() < 2 || fds.size() > kMostEnds) throw nb::value_error("a cable has two ends, or more");
  const nb::gil_scoped_release release;  // the shaper's thread may be busy
  return shaper.join(fds, seed);
}

// `rate` in bits per second, times in seconds, chances from 0 to 1.
void set(const PyShaper& self, int cable, int end, double rate, double delay, double jitter, double loss,
         double corrupt, double duplicate, double reorder, double collapse, std::uint64_t queue, std::uint32_t overhead,
         int flow) {
  const bool chances = is_chance(loss) && is_chance(corrupt) && is_chance(duplicate) && is_chance(reorder);
  const bool usable = is_short(delay) && is_short(jitter) && chances && collapse >= 0 && collapse <= 2 && rate >= 0 &&
                      flow >= static_cast<int>(Flow::moves) && flow <= static_cast<int>(Flow::dark);
  if (!usable) throw nb::value_error("a cable cannot be like that");
  const Shape shape{.rate = rate,
                    .delay = static_cast<shaper::Time>(delay * kNanoseconds),
                    .jitter = static_cast<shaper::Time>(jitter * kNanoseconds),
                    .loss = loss,
                    .corrupt = corrupt,
                    .duplicate = duplicate,
                    .reorder = reorder,
                    .collapse = collapse,
                    .queue = queue,
                    .overhead = overhead,
                    .flow = static_cast<Flow>(flow)};
  Shaper& shaper = self.get();
  const nb::gil_scoped_release release;
  shaper.worker(cable).set(cable, end, shape);
}

// A method that takes only a cable, called without the interpreter's lock.
template <auto Method>
void of_cable(const PyShaper& self, int cable) {
  Shaper& shaper = self.get();
  const nb::gil_scoped_release release;
  (shaper.worker(cable).*Method)(cable);
}

nb::dict read(const PyShaper& self, int cable, int end) {
  Shaper& shaper = self.get();
  const auto [now, missed, unsent] = [&] {
    const nb::gil_scoped_release release;
    return shaper.worker(cable).counters(cable, end);
  }();
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
  named["missed"] = missed;
  named["unsent"] = unsent;
  named["latest"] = static_cast<double>(now.latest) / kNanoseconds;
  return named;
}

}  // namespace

void bind_shaper(nb::module_& module) {
  nb::class_<PyShaper>(module, "Shaper")
      .def(
          "__init__", [](PyShaper* self, int threads) { new (self) PyShaper(std::make_unique<Shaper>(threads)); },
          "threads"_a = 0)
      .def("join", &join, "fds"_a, "seed"_a)
      .def("part", &of_cable<&Worker::remove>, "cable"_a)
      .def("set", &set, "cable"_a, "end"_a, nb::kw_only(), "rate"_a, "delay"_a, "jitter"_a, "loss"_a, "corrupt"_a,
           "duplicate"_a, "reorder"_a, "collapse"_a, "queue"_a, "overhead"_a, "flow"_a)
      .def("clear", &of_cable<&Worker::clear>, "cable"_a)
      .def("read", &read, "cable"_a, "end"_a)
      .def("close", &PyShaper::close);
}

}  // namespace ferrule
