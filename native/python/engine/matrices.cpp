#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/isa.h"
#include "kernels/pack/pack.h"
#include "kernels/pack/quantise.h"
#include "kernels/pack/unpack.h"
#include "python/engine/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

template <class T>
const T* at(std::uintptr_t address) {
  return reinterpret_cast<const T*>(address);
}

// Each matrix times the same activations x (count, columns), into y (count, stride): the results side by side, each at
// the row after the 16 times blocks of the one before.
void multiply(PyCompute& compute, const std::vector<PyMatrix*>& matrices, std::uintptr_t x, std::size_t count,
              std::size_t x_stride, std::uintptr_t y, std::size_t y_stride, bool exact) {
  std::vector<Factor> factors;
  std::size_t row = 0;
  for (PyMatrix* const matrix : matrices) {
    if (matrix->place().pool != nullptr) throw std::invalid_argument("a matrix that is on disk");
    const PackedMatrix packed = matrix->packed();
    factors.push_back({packed, reinterpret_cast<float*>(y) + row, y_stride});
    row += packed.layout.blocks() * kBlockRows;
  }
  const nb::gil_scoped_release release;
  const std::lock_guard lock(compute.one_call);
  compute.multiplier.multiply(factors, at<float>(x), count, x_stride, exact ? Precision::exact : Precision::fast);
}

}  // namespace

PyMatrix::PyMatrix(std::size_t rows, std::size_t columns, int codes, int bits, int scale, int offsets, int zero,
                   std::size_t group) {
  layout_.rows = rows;
  layout_.columns = columns;
  layout_.codes = static_cast<Codes>(codes);
  layout_.bits = static_cast<std::uint8_t>(bits);
  layout_.scale = static_cast<ScaleKind>(scale);
  layout_.offsets = static_cast<Offsets>(offsets);
  layout_.zero = zero;
  layout_.group = group;
  if (const char* const wrong = invalid(layout_)) throw std::invalid_argument(wrong);
}

void PyMatrix::set_order(std::vector<std::int32_t> order) {
  if (order.size() != layout_.columns) throw std::invalid_argument("an order has a number for each column");
  order_ = std::move(order);
}

void PyMatrix::stream(std::shared_ptr<WeightPool> pool, std::size_t part, std::size_t index) {
  if (part >= pool->size()) throw std::invalid_argument("the pool has no such part");
  place_ = {std::move(pool), part, index};
  memory_ = {};
}

void PyMatrix::allocate() {
  if (memory_.data() == nullptr && place_.pool == nullptr) memory_ = SharedMemory(layout_.bytes());
}

void PyMatrix::check(std::size_t first, std::size_t rows) {
  if (place_.pool != nullptr) throw std::invalid_argument("a matrix that is on disk is not packed");
  if (first % kBlockRows != 0 || first + rows > layout_.rows) {
    throw std::invalid_argument("rows are packed from a multiple of 16 on, and within the matrix");
  }
  allocate();
}

void PyMatrix::pack_groups(std::size_t first, std::size_t rows, std::uintptr_t codes, std::size_t row_stride,
                           std::size_t column_stride, std::uintptr_t scales, std::uintptr_t offsets,
                           std::uintptr_t supers, std::uintptr_t super_offsets) {
  check(first, rows);
  if (layout_.scale == ScaleKind::nested &&
      (supers == 0 || (layout_.offsets == Offsets::numbers && super_offsets == 0))) {
    throw std::invalid_argument("nested scales are multiples of something");
  }
  const nb::gil_scoped_release release;
  ferrule::pack_groups(layout_,
                       {first, rows, at<std::uint8_t>(codes), row_stride, column_stride, at<float>(scales),
                        at<float>(offsets), at<float>(supers), at<float>(super_offsets)},
                       memory_.data());
}

void PyMatrix::pack_plain(std::size_t first, std::size_t rows, std::uintptr_t numbers, std::size_t stride) {
  check(first, rows);
  const nb::gil_scoped_release release;
  ferrule::pack_plain(layout_, first, rows, at<void>(numbers), stride, memory_.data());
}

PyWeightPool::PyWeightPool(PyWeightFile& file,
                           const std::vector<std::vector<std::tuple<std::uint64_t, std::size_t>>>& parts,
                           std::size_t slots, bool cyclic) {
  std::vector<std::vector<Extent>> given;
  for (const auto& each : parts) {
    std::vector<Extent>& extents = given.emplace_back();
    for (const auto& [offset, bytes] : each) extents.push_back({offset, bytes});
  }
  pool = std::make_shared<WeightPool>(file.file, std::move(given), slots, cyclic);
}

void bind_matrices(nb::module_& module) {
  module.def("kernel_instructions", [] { return name_of(isa()); });
  module.def(
      "quantise",
      [](int element, std::uintptr_t numbers, std::size_t groups, int bits, std::uintptr_t codes,
         std::uintptr_t scales) {
        if (element < 0 || element > 2 || (bits != 4 && bits != 8)) throw std::invalid_argument("element or bits");
        const nb::gil_scoped_release release;
        quantise(static_cast<Element>(element), at<void>(numbers), groups, bits, reinterpret_cast<std::uint8_t*>(codes),
                 reinterpret_cast<float*>(scales));
      },
      "element"_a, "numbers"_a, "groups"_a, "bits"_a, "codes"_a, "scales"_a);
  module.def(
      "unpack",
      [](std::uintptr_t address, std::size_t rows, std::size_t stride, std::size_t bytes, std::size_t width,
         std::size_t bits, std::size_t step, std::uintptr_t codes) {
        if (bits < 1 || bits > 8 || width == 0 || bytes % width != 0 || (8 % bits != 0 && width != 1) ||
            (step != 0 && bytes % 4 != 0)) {
          throw std::invalid_argument("bits, width or step");
        }
        const nb::gil_scoped_release release;
        unpack({at<std::uint8_t>(address), rows, stride, bytes, width, bits, step},
               reinterpret_cast<std::uint8_t*>(codes));
      },
      "address"_a, "rows"_a, "stride"_a, "size"_a, "width"_a, "bits"_a, "step"_a, "codes"_a);
  nb::class_<PyMatrix>(module, "Matrix")
      .def(nb::init<std::size_t, std::size_t, int, int, int, int, int, std::size_t>(), "rows"_a, "columns"_a, "codes"_a,
           "bits"_a, "scale"_a, "offsets"_a, "zero"_a, "group"_a)
      .def("set_order", &PyMatrix::set_order)
      .def("pack_groups", &PyMatrix::pack_groups, "first"_a, "rows"_a, "codes"_a, "row_stride"_a, "column_stride"_a,
           "scales"_a, "offsets"_a = 0, "supers"_a = 0, "super_offsets"_a = 0)
      .def("pack_plain", &PyMatrix::pack_plain)
      .def("stream", [](PyMatrix& matrix, PyWeightPool& pool, std::size_t part,
                        std::size_t index) { matrix.stream(pool.pool, part, index); })
      .def_prop_ro("layout",
                   [](const PyMatrix& matrix) {
                     const MatrixLayout& it = matrix.layout();
                     return std::tuple(it.rows, it.columns, static_cast<int>(it.codes), static_cast<int>(it.bits),
                                       static_cast<int>(it.scale), static_cast<int>(it.offsets),
                                       static_cast<int>(it.zero), it.group);
                   })
      .def_prop_ro("order", [](const PyMatrix& matrix) { return matrix.order(); })
      .def_prop_ro("address", &PyMatrix::address)
      .def_prop_ro("bytes", &PyMatrix::bytes);
  module.def(
      "read_rate",
      [](int descriptor, int threads, std::uint64_t offset, std::size_t bytes) {
        if (bytes == 0 || offset % kDiskPage != 0) throw std::invalid_argument("whole pages are read");
        const nb::gil_scoped_release release;
        return read_rate(descriptor, threads, offset, bytes);
      },
      "descriptor"_a, "threads"_a, "offset"_a, "size"_a);
  nb::class_<PyWeightFile>(module, "WeightFile").def(nb::init<int, int>(), "descriptor"_a, "threads"_a);
  nb::class_<PyWeightPool>(module, "WeightPool")
      .def(nb::init<PyWeightFile&, const std::vector<std::vector<std::tuple<std::uint64_t, std::size_t>>>&, std::size_t,
                    bool>(),
           "file"_a, "parts"_a, "slots"_a, "cyclic"_a)
      .def("use",
           [](const PyWeightPool& it) {
             const StreamUse use = it.pool->use();
             return std::tuple(use.hits, use.misses, use.bytes, use.waited);
           })
      .def_prop_ro("bytes", [](const PyWeightPool& it) { return it.pool->bytes(); });
  nb::class_<PyCompute>(module, "Compute").def(nb::init<int>(), "threads"_a).def("multiply", &multiply);
}

}  // namespace ferrule
