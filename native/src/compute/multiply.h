// Products of packed matrices with activations, shared out over the threads of a pool.
#pragma once

#include <array>
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
  // Each factor times activations of its own, x[f] (count, columns): x[f][i * stride + column]. Results of whole rows
  // of a matrix only, without those that fill its last block.
  void multiply_each(std::span<const Factor> factors, std::span<const float* const> x, std::size_t count,
                     std::size_t stride, Precision precision);

 private:
  struct Want {
    Form form;
    std::int32_t zero;   // of int8
    std::size_t padded;  // columns
    bool operator==(const Want&) const = default;
  };
  struct Converted {
    Want want{};
    Activations activations;
    std::vector<std::uint8_t> values;
    std::vector<float> scales;
    std::vector<std::int32_t> starts;
    std::vector<float> sums;
    bool ready = false;
  };
  struct Tile {
    std::size_t first, count;
  };

  void multiply_ordered(const Factor& factor, const float* x, std::size_t count, std::size_t stride,
                        Precision precision);
  void multiply_together(std::span<const Factor> factors, const float* x, std::size_t count, std::size_t stride,
                         Precision precision);
  const Activations& converted(const Want& want, const float* x, std::size_t count, std::size_t stride,
                               std::size_t columns);
  static void begin(Converted& to, const Want& want, std::size_t count);
  // Activations `first` on, `count` of them: a tile.
  static void convert(Converted& to, std::size_t first, std::size_t count, const float* x, std::size_t stride,
                      std::size_t columns);

  static constexpr std::size_t kMostFactors = 8;

  Pool& pool_;
  std::array<Converted, kMostFactors> converted_;
  std::vector<Tile> tiles_;
  std::vector<float> ordered_;
};

}  // namespace ferrule
