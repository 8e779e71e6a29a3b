#include <nanobind/nanobind.h>

#include <stdexcept>

#include "compute/sample.h"
#include "python/engine/engine.h"

namespace ferrule {
namespace nb = nanobind;
using namespace nb::literals;

void bind_sampling(nb::module_& module) {
  module.def(
      "sample",
      [](std::uintptr_t logits, std::size_t count, double temperature, std::int64_t top_k, double top_p, double min_p,
         double random) {
        if (!(temperature >= 0 && top_p >= 0 && min_p >= 0 && min_p <= 1 && random >= 0 && random < 1)) {
          throw std::invalid_argument("temperature, top_p, min_p or random");
        }
        const nb::gil_scoped_release release;
        return sample({reinterpret_cast<const float*>(logits), count}, {temperature, top_k, top_p, min_p}, random);
      },
      "logits"_a, "count"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "random"_a);
}

}  // namespace ferrule
