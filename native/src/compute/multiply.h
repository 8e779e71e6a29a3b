// Products of packed matrices with activations, shared out over the threads of a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compute/pool.h"
#include "kernels/product.h"

namespace ferrule {

// Whether products of codes take activations as they are (float32), or rounded to what the instructions multiply
// fastest: int8 with a scale for each 32 for small integers, bfloat16 for bfloat16.
enum class Precision : std::uint8_t { fast, exact };

// One factor of a product, and where its result goes: y[i * stride + row], for whole blocks of 16 rows.
struct Factor {
  PackedMatrix matrix;
  float* y = nullptr;
  std::size_t stride = 0;
};

class Multiplier {
 public:
  explicit Multiplier(Pool& pool) : pool_(pool) {}

  // All factors times the same activations x (count, columns): x[i * stride + column].
  void multiply(std::span<const Factor> factors, const float* x, std::size_t count, std::size_t stride,
                Precision precision);

 private:
  void multiply_ordered(const Factor& factor, const float* x, std::size_t count, std::size_t stride,
                        Precision precision);
  void multiply_together(std::span<const Factor> factors, const float* x, std::size_t count, std::size_t stride,
                         Precision precision);
  const Activations& converted(Form form, const float* x, std::size_t count, std::size_t stride, std::size_t columns,
                               std::size_t padded);

  struct Converted {
    Activations activations;
    std::vector<std::uint8_t> values;
    std::vector<float> scales;
    std::vector<std::int32_t> sums;
    bool ready = false;
  };

  Pool& pool_;
  Converted converted_[3];  // by form
  std::vector<float> ordered_;
};

}  // namespace ferrule
