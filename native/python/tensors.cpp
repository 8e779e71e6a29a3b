#include "python/tensors.h"

#include <nanobind/ndarray.h>

#include <cstdint>

#include "operation.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ferrule::Dtype;

// DLPack 1.3's table of C functions of an array library, as far as it is needed here.
struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  const ExchangeApi* previous;
  void* make_tensor;
  void* tensor_from_object;
  void* object_from_tensor;
  // Fills in what the object knows of itself; nothing is kept alive. Not 0: a Python error is set.
  int (*view_of_object)(PyObject* object, nb::dlpack::dltensor* view);
};

PyTypeObject* tensor_type = nullptr;
const ExchangeApi* tensor_api = nullptr;

// Believe that objects of `type` and its subclasses are as `api` says.
bool know_tensors(const nb::handle& type, const nb::handle& api) {
  const auto* table = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(api.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) throw nb::python_error();
  if (table->major != 1 || table->view_of_object == nullptr) return false;
  tensor_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());  // a library's types live to the end
  tensor_api = table;
  return true;
}

int dtype_of(const nb::dlpack::dtype& type) {
  using Code = nb::dlpack::dtype_code;
  const auto of_bits = [&](std::initializer_list<std::pair<int, Dtype>> known) {
    for (const auto& [bits, dtype] : known) {
      if (type.bits == bits) return static_cast<int>(dtype);
    }
    return -1;
  };
  if (type.lanes != 1) return -1;
  switch (static_cast<Code>(type.code)) {
    case Code::Float:
      return of_bits({{32, Dtype::f32}, {64, Dtype::f64}, {16, Dtype::f16}});
    case Code::Bfloat:
      return of_bits({{16, Dtype::bf16}});
    case Code::Int:
      return of_bits({{32, Dtype::i32}, {64, Dtype::i64}, {8, Dtype::i8}, {16, Dtype::i16}});
    case Code::UInt:
      return of_bits({{8, Dtype::u8}, {16, Dtype::u16}, {32, Dtype::u32}, {64, Dtype::u64}});
    case Code::Bool:
      return of_bits({{8, Dtype::boolean}});
    default:
      return -1;
  }
}

// Number of elements if they lie one after the other, or -1.
std::int64_t elements_without_gaps(const nb::dlpack::dltensor& view) {
  std::int64_t count = 1;
  bool gaps = false;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    gaps |= view.shape[axis] != 1 && view.strides != nullptr && view.strides[axis] != count;
    count *= view.shape[axis];
  }
  return gaps && count != 0 ? -1 : count;
}

bool is_tensor(const nb::handle& x) {
  return tensor_type != nullptr && (Py_TYPE(x.ptr()) == tensor_type || PyType_IsSubtype(Py_TYPE(x.ptr()), tensor_type));
}

// Address, number of elements and type code of what find_tensor finds; None for everything else, whatever the reason.
nb::object locate_tensor(const nb::handle& x) {
  TensorPlace place{};
  if (!find_tensor(x, place)) return nb::none();
  return nb::make_tuple(place.address, place.count, place.dtype);
}

}  // namespace

bool find_tensor(const nb::handle& x, TensorPlace& place) {
  nb::dlpack::dltensor view;
  if (!is_tensor(x)) return false;
  if (tensor_api->view_of_object(x.ptr(), &view) != 0) {
    PyErr_Clear();
    return false;
  }
  place.dtype = dtype_of(view.dtype);
  place.count = elements_without_gaps(view);
  place.address = reinterpret_cast<std::uintptr_t>(view.data) + view.byte_offset;
  const bool on_host = view.device.device_type == nb::device::cpu::value;
  return place.dtype >= 0 && place.count >= 0 && on_host && (view.data != nullptr || place.count == 0);
}

void bind_tensors(nb::module_& module) {
  module.def("know_tensors", &know_tensors, "type"_a, "api"_a);
  module.def("locate_tensor", &locate_tensor);
}
