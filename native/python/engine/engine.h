// Python bindings of a model's computing: packed matrices, their products, and step programs.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "compute/memory.h"
#include "compute/multiply.h"
#include "compute/pool.h"
#include "kernels/product.h"

namespace ferrule {

// A packed matrix that owns its memory.
class PyMatrix {
 public:
  PyMatrix(std::size_t rows, std::size_t columns, int codes, int bits, int scale, int offsets, int zero,
           std::size_t group);

  PackedMatrix packed() const { return {layout_, memory_.data(), order_.empty() ? nullptr : order_.data()}; }
  void set_order(std::vector<std::int32_t> order);
  void pack_groups(std::size_t first, std::size_t rows, std::uintptr_t codes, std::size_t row_stride,
                   std::size_t column_stride, std::uintptr_t scales, std::uintptr_t offsets, std::uintptr_t supers,
                   std::uintptr_t super_offsets);
  void pack_plain(std::size_t first, std::size_t rows, std::uintptr_t numbers, std::size_t stride);
  std::size_t bytes() const { return layout_.bytes(); }

 private:
  void check(std::size_t first, std::size_t rows) const;

  MatrixLayout layout_;
  SharedMemory memory_;
  std::vector<std::int32_t> order_;
};

// The threads of a rank and what products need beside the matrices.
class PyCompute {
 public:
  explicit PyCompute(int threads) : pool(threads), multiplier(pool) {}

  Pool pool;
  Multiplier multiplier;
  std::mutex one_call;  // a product has the pool to itself
};

void bind_matrices(nanobind::module_& module);
void bind_programs(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);

}  // namespace ferrule
