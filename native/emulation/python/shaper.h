// Shaper for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "ferrule/ferrule.h"

namespace ferrule {

class PyShaper {
 public:
  explicit PyShaper(int threads);
  PyShaper(const PyShaper&) = delete;
  PyShaper& operator=(const PyShaper&) = delete;
  ~PyShaper() { close(); }

  int join(const std::vector<int>& fds, std::uint64_t seed);
  void part(int cable);
  void set(int cable, int end, double rate, double delay, double jitter, double loss, double corrupt, double duplicate,
           double reorder, double collapse, std::uint64_t queue, std::uint32_t overhead, int flow);
  void clear(int cable);
  nanobind::dict read(int cable, int end);
  void close();

 private:
  ferrule_shaper* open();

  ferrule_shaper* shaper_ = nullptr;
};

void bind_shaper(nanobind::module_& module);

}  // namespace ferrule
