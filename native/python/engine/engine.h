// Python bindings of a model's computing: packed matrices, their products, and step programs.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "compute/memory.h"
#include "compute/multiply.h"
#include "compute/pool.h"
#include "kernels/product.h"
#include "step/stream.h"

namespace ferrule {

// A packed matrix that owns its memory, or stays on disk.
class PyMatrix {
 public:
  PyMatrix(std::size_t rows, std::size_t columns, int codes, int bits, int scale, int offsets, int zero,
           std::size_t group);

  PackedMatrix packed() {
    allocate();
    return {layout_, memory_.data(), order_.empty() ? nullptr : order_.data()};
  }
  void set_order(std::vector<std::int32_t> order);
  void pack_groups(std::size_t first, std::size_t rows, std::uintptr_t codes, std::size_t row_stride,
                   std::size_t column_stride, std::uintptr_t scales, std::uintptr_t offsets, std::uintptr_t supers,
                   std::uintptr_t super_offsets);
  void pack_plain(std::size_t first, std::size_t rows, std::uintptr_t numbers, std::size_t stride);
  std::size_t bytes() const { return layout_.bytes(); }
  const MatrixLayout& layout() const { return layout_; }
  const std::vector<std::int32_t>& order() const { return order_; }
  std::uintptr_t address() {
    allocate();
    return reinterpret_cast<std::uintptr_t>(memory_.data());
  }

  // Give its memory back: from then on its data are extent `index` of a part of `pool`, whenever that is entered.
  void stream(std::shared_ptr<WeightPool> pool, std::size_t part, std::size_t index);
  struct Place {
    std::shared_ptr<WeightPool> pool;  // nullptr: the matrix owns its memory
    std::size_t part = 0, index = 0;
  };
  const Place& place() const { return place_; }

 private:
  void allocate();  // when it is first used: what stays on disk never is
  void check(std::size_t first, std::size_t rows);

  MatrixLayout layout_;
  SharedMemory memory_;
  std::vector<std::int32_t> order_;
  Place place_;
};

class PyWeightFile {
 public:
  PyWeightFile(int descriptor, int threads) : file(std::make_shared<WeightFile>(descriptor, threads)) {}

  std::shared_ptr<WeightFile> file;
};

class PyWeightPool {
 public:
  // `parts`: offset and bytes of each matrix.
  PyWeightPool(PyWeightFile& file, const std::vector<std::vector<std::tuple<std::uint64_t, std::size_t>>>& parts,
               std::size_t slots, bool cyclic);

  std::shared_ptr<WeightPool> pool;
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
