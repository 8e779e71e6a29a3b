// The module ferrule._native: the C ABI for Python, as thin as it goes. Arrays come as addresses and counts, because
// asking a tensor for its address is much cheaper than any protocol for exchanging arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ferrule/ferrule.h"
#include "raw.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ErrorText = std::array<char, 256>;

int python_wants_to_stop(void*) {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals();
}

const std::uint8_t* checked_token(const nb::bytes& token) {
  if (token.size() != FERRULE_TOKEN_BYTES) throw nb::value_error("a segment's token has 16 bytes");
  return reinterpret_cast<const std::uint8_t*>(token.c_str());
}

class PySegment {
 public:
  static PySegment create(const std::string& name, const nb::bytes& token, int ranks) {
    return make(ferrule_segment_create, name, token, ranks);
  }
  static PySegment open(const std::string& name, const nb::bytes& token, int ranks) {
    return make(ferrule_segment_open, name, token, ranks);
  }
  explicit PySegment(ferrule_segment* segment) : segment_(segment) {}
  PySegment(PySegment&& other) noexcept : segment_(other.release()) {}
  PySegment& operator=(PySegment&&) = delete;
  ~PySegment() { close(); }

  void close() { ferrule_segment_destroy(release()); }
  ferrule_segment* get() const { return segment_; }
  ferrule_segment* release() { return std::exchange(segment_, nullptr); }

 private:
  template <class Make>
  static PySegment make(Make&& make_segment, const std::string& name, const nb::bytes& token, int ranks) {
    const std::uint8_t* const words = checked_token(token);
    ferrule_segment* segment = nullptr;
    ErrorText error{};
    if (make_segment(name.c_str(), words, ranks, &segment, error.data(), error.size()) != FERRULE_OK) {
      PyErr_SetString(PyExc_OSError, error.data());
      throw nb::python_error();
    }
    return PySegment(segment);
  }

  ferrule_segment* segment_;
};

class PyGroup {
 public:
  PyGroup(int rank, const std::vector<int>& fds, std::uint64_t epoch, PySegment* segment,
          const std::vector<int>& local_index, double spin_us, double yield_us) {
    if (!local_index.empty() && local_index.size() != fds.size()) throw nb::value_error("one local index per rank");
    ferrule_group_options options{};
    options.abi_version = FERRULE_ABI_VERSION;
    options.rank = rank;
    options.size = static_cast<int>(fds.size());
    options.epoch = epoch;
    options.fds = fds.data();
    options.local_index = local_index.empty() ? nullptr : local_index.data();
    options.segment = segment == nullptr ? nullptr : segment->get();
    options.spin_us = spin_us;
    options.yield_us = yield_us;
    options.interrupted = python_wants_to_stop;
    ErrorText error{};
    if (ferrule_group_create(&options, &group_, error.data(), error.size()) != FERRULE_OK) {
      throw std::runtime_error(error.data());
    }
    if (segment != nullptr) segment->release();
  }
  PyGroup(const PyGroup&) = delete;
  PyGroup& operator=(const PyGroup&) = delete;
  ~PyGroup() { ferrule_group_destroy(group_); }

  int all_reduce(std::uintptr_t data, std::size_t count, int dtype, int reduction, double timeout) {
    return wait([&] {
      return ferrule_all_reduce(group_, pointer(data), count, dtype_of(dtype), reduction_of(reduction), timeout);
    });
  }
  int all_gather(std::uintptr_t in, std::uintptr_t out, std::size_t count, int dtype, double timeout) {
    return wait([&] { return ferrule_all_gather(group_, pointer(in), pointer(out), count, dtype_of(dtype), timeout); });
  }
  int reduce_scatter(std::uintptr_t in, std::uintptr_t out, std::size_t count, int dtype, int reduction,
                     double timeout) {
    return wait([&] {
      return ferrule_reduce_scatter(group_, pointer(in), pointer(out), count, dtype_of(dtype), reduction_of(reduction),
                                    timeout);
    });
  }
  int broadcast(std::uintptr_t data, std::size_t count, int dtype, int root, double timeout) {
    return wait([&] { return ferrule_broadcast(group_, pointer(data), count, dtype_of(dtype), root, timeout); });
  }
  int send(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    return wait([&] { return ferrule_send(group_, pointer(data), count, dtype_of(dtype), peer, timeout); });
  }
  int recv(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    return wait([&] { return ferrule_recv(group_, pointer(data), count, dtype_of(dtype), peer, timeout); });
  }
  int barrier(double timeout) {
    return wait([&] { return ferrule_barrier(group_, timeout); });
  }
  int close() { return ferrule_group_close(group_); }
  void abort(const std::string& reason) { ferrule_group_abort(group_, reason.c_str()); }
  std::string transport(int peer) const { return ferrule_group_transport(group_, peer); }
  nb::tuple failure() const {
    ferrule_failure failure{};
    ferrule_group_failure(group_, &failure);
    return nb::make_tuple(static_cast<int>(failure.status), failure.rank, failure.seconds,
                          nb::str(failure.message, std::char_traits<char>::length(failure.message)));
  }

 private:
  static void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
  static ferrule_dtype dtype_of(int value) { return static_cast<ferrule_dtype>(value); }
  static ferrule_reduction reduction_of(int value) { return static_cast<ferrule_reduction>(value); }

  // Other Python threads run while this one waits for its peers.
  template <class Operation>
  static int wait(Operation&& operation) {
    ferrule_status status;
    {
      const nb::gil_scoped_release release;
      status = operation();
    }
    // Later calls on an interrupted group get the same status, but the signal was raised once and for all.
    if (status == FERRULE_INTERRUPTED && PyErr_Occurred() != nullptr) throw nb::python_error();
    return status;
  }

  ferrule_group* group_ = nullptr;
};

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Ferrule's native data plane. Use ferrule.fabric; this module checks no arguments.";

  nb::class_<PySegment>(module, "Segment")
      .def_static("create", &PySegment::create, "name"_a, "token"_a, "ranks"_a)
      .def_static("open", &PySegment::open, "name"_a, "token"_a, "ranks"_a)
      .def_static("unlink", [](const std::string& name) { return ferrule_segment_unlink(name.c_str()) == FERRULE_OK; })
      .def("close", &PySegment::close);

  nb::class_<PyGroup>(module, "Group")
      .def(nb::init<int, const std::vector<int>&, std::uint64_t, PySegment*, const std::vector<int>&, double, double>(),
           "rank"_a, "fds"_a, "epoch"_a, "segment"_a.none(), "local_index"_a, "spin_us"_a, "yield_us"_a)
      .def("all_reduce", &PyGroup::all_reduce)
      .def("all_gather", &PyGroup::all_gather)
      .def("reduce_scatter", &PyGroup::reduce_scatter)
      .def("broadcast", &PyGroup::broadcast)
      .def("send", &PyGroup::send)
      .def("recv", &PyGroup::recv)
      .def("barrier", &PyGroup::barrier)
      .def("close", &PyGroup::close)
      .def("abort", &PyGroup::abort)
      .def("transport", &PyGroup::transport)
      .def("failure", &PyGroup::failure);

  module.def("raw_ping_pong", &ferrule::raw_ping_pong, "fd"_a, "bytes"_a, "rounds"_a, "starts"_a, "timeout"_a,
             nb::call_guard<nb::gil_scoped_release>());

  nb::dict status;
  status["OK"] = static_cast<int>(FERRULE_OK);
  status["PEER_LOST"] = static_cast<int>(FERRULE_PEER_LOST);
  status["TIMEOUT"] = static_cast<int>(FERRULE_TIMEOUT);
  status["MISMATCH"] = static_cast<int>(FERRULE_MISMATCH);
  status["INVALID"] = static_cast<int>(FERRULE_INVALID);
  status["ABORTED"] = static_cast<int>(FERRULE_ABORTED);
  status["INTERRUPTED"] = static_cast<int>(FERRULE_INTERRUPTED);
  status["BUSY"] = static_cast<int>(FERRULE_BUSY);
  status["SYSTEM"] = static_cast<int>(FERRULE_SYSTEM);
  module.attr("STATUS") = status;

  nb::dict dtypes;
  const char* const dtype_names[] = {"float64", "float32", "bfloat16", "float16", "int8",
                                     "uint8",   "int32",   "int64",    "bool"};
  for (int i = 0; i < 9; ++i) dtypes[dtype_names[i]] = i;
  module.attr("DTYPES") = dtypes;

  nb::dict reductions;
  const char* const reduction_names[] = {"sum", "prod", "min", "max", "avg"};
  for (int i = 0; i < 5; ++i) reductions[reduction_names[i]] = i;
  module.attr("REDUCTIONS") = reductions;
}
