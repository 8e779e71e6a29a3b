#include "python/group/group.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "python/transports/channels.h"
#include "ferrule/ferrule.h"
#include "python/group/heartbeat.h"
#include "python/tensors.h"
#include "python/text.h"
#include "python/bench/timing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

int python_wants_to_stop(void*) {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals();
}

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// One operation for Group.run and Group.start, with the counts that the C ABI only points to.
struct PyOperation {
  ferrule_operation operation{};
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> recv_counts;

  PyOperation(int op, int dtype, int reduction, int root, std::uintptr_t in, std::uintptr_t out, std::size_t count,
              std::vector<std::size_t> sends, std::vector<std::size_t> receives, bool quantized)
      : send_counts(std::move(sends)), recv_counts(std::move(receives)) {
    operation.op = static_cast<ferrule_op>(op);
    operation.dtype = static_cast<ferrule_dtype>(dtype);
    operation.reduction = static_cast<ferrule_reduction>(reduction);
    operation.root = root;
    operation.in = pointer(in);
    operation.out = pointer(out);
    operation.count = count;
    operation.quantized = quantized ? 1 : 0;
  }
  ferrule_operation get() const {
    ferrule_operation whole = operation;
    whole.send_counts = send_counts.empty() ? nullptr : send_counts.data();
    whole.recv_counts = recv_counts.empty() ? nullptr : recv_counts.data();
    return whole;
  }
};

class PyWork {
 public:
  explicit PyWork(ferrule_work* work) : work_(work) {}
  PyWork(PyWork&& other) noexcept : work_(std::exchange(other.work_, nullptr)) {}
  PyWork& operator=(PyWork&&) = delete;
  ~PyWork() {
    if (work_ != nullptr) ferrule_work_destroy(work_);
  }

  int wait(double timeout) const {
    constexpr double kLookUp = 0.1;  // signals are for the main thread, which may be this one
    for (;;) {
      const double slice = std::min(timeout, kLookUp);
      ferrule_status status;
      {
        const nb::gil_scoped_release release;
        status = ferrule_work_wait(work_, slice);
      }
      timeout -= slice;
      if (status != FERRULE_PENDING || timeout <= 0) return status;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  int source() const { return ferrule_work_source(work_); }
  void then(nb::callable done) const {
    auto* const held = new nb::callable(std::move(done));
    const nb::gil_scoped_release release;
    ferrule_work_then(
        work_,
        [](void* context) {
          const nb::gil_scoped_acquire gil;
          const std::unique_ptr<nb::callable> call(static_cast<nb::callable*>(context));
          try {
            (*call)();
          } catch (nb::python_error& error) {
            error.discard_as_unraisable("a callback of Work.then");
          }
        },
        held);
  }

 private:
  ferrule_work* work_;
};

using Decisions = std::vector<std::tuple<int, std::uint64_t, int>>;

class PyGroup {
 public:
  PyGroup(int rank, std::uint64_t epoch, const std::vector<PyChannel*>& collectives,
          const std::vector<PyChannel*>& messages, PySegment* segment, const std::vector<int>& local_index,
          double spin_us, double yield_us, const Decisions& decisions, const std::vector<int>& tree,
          const std::vector<int>& ring, const PyHeartbeat* heartbeat, const std::vector<int>& heartbeat_ranks)
      : rank_(rank), size_(static_cast<int>(collectives.size())) {
    const std::size_t size = collectives.size();
    const auto fits = [&](const std::vector<int>& list) { return list.empty() || list.size() == size; };
    if (messages.size() != size || !fits(local_index) || !fits(tree) || !fits(ring) ||
        (heartbeat != nullptr && heartbeat_ranks.size() != size)) {
      throw nb::value_error("every list has an entry per rank");
    }
    std::vector<ferrule_channel*> streams[2];
    for (const auto* channels : {&collectives, &messages}) {
      for (const PyChannel* channel : *channels) {
        streams[channels == &messages].push_back(channel == nullptr ? nullptr : channel->get());
      }
    }
    std::vector<ferrule_decision> rows;
    for (const auto& [op, up_to, algorithm] : decisions) {
      rows.push_back({op, up_to, static_cast<ferrule_algorithm>(algorithm)});
    }
    ferrule_group_options options{};
    options.abi_version = FERRULE_ABI_VERSION;
    options.rank = rank;
    options.size = static_cast<int>(size);
    options.epoch = epoch;
    options.collectives = streams[0].data();
    options.messages = streams[1].data();
    options.local_index = local_index.empty() ? nullptr : local_index.data();
    options.segment = segment == nullptr ? nullptr : segment->get();
    options.spin_us = spin_us;
    options.yield_us = yield_us;
    options.interrupted = python_wants_to_stop;
    options.decisions = rows.data();
    options.decision_count = rows.size();
    options.tree = tree.empty() ? nullptr : tree.data();
    options.ring = ring.empty() ? nullptr : ring.data();
    options.heartbeat = heartbeat == nullptr ? nullptr : heartbeat->get();
    options.heartbeat_ranks = heartbeat_ranks.data();
    ErrorText error{};
    if (ferrule_group_create(&options, &group_, error.data(), error.size()) != FERRULE_OK) {
      throw std::runtime_error(error.data());
    }
    if (segment != nullptr) segment->release();
    for (const auto* channels : {&collectives, &messages}) {
      for (PyChannel* channel : *channels) {
        if (channel != nullptr) channel->release();
      }
    }
  }
  PyGroup(const PyGroup&) = delete;
  PyGroup& operator=(const PyGroup&) = delete;
  ~PyGroup() {
    const nb::gil_scoped_release release;
    ferrule_group_destroy(group_);
  }

  // The calls that must be quick; everything else goes through run and start.
  int all_reduce(std::uintptr_t data, std::size_t count, int dtype, int reduction, double timeout) {
    ferrule_operation operation{};
    operation.op = FERRULE_ALL_REDUCE;
    operation.dtype = static_cast<ferrule_dtype>(dtype);
    operation.reduction = static_cast<ferrule_reduction>(reduction);
    operation.out = pointer(data);
    operation.count = count;
    return run_one(operation, timeout);
  }
  // The same for a torch tensor, without the way over Python; kNotHere for what locate_tensor does not find.
  int all_reduce_tensor(const nb::handle& x, int reduction, double timeout) {
    TensorPlace place{};
    if (!find_tensor(x, place)) return kNotHere;
    return all_reduce(place.address, static_cast<std::size_t>(place.count), place.dtype, reduction, timeout);
  }
  // torch's allreduce of one tensor that is waited for. `reductions` has our numbers by the hashes of torch's. Every
  // step is one that Python would do; kNotHere wherever there is more to do.
  int all_reduce_torch(const nb::list& tensors, const nb::handle& options, const nb::dict& reductions, double timeout) {
    static PyObject* const in_background = PyUnicode_InternFromString("asyncOp");
    static PyObject* const kind = PyUnicode_InternFromString("reduceOp");
    if (nb::len(tensors) != 1 || nb::getattr(options, in_background).is(Py_True)) return kNotHere;
    const Py_hash_t hash = PyObject_Hash(nb::getattr(options, kind).ptr());
    if (hash == -1) throw nb::python_error();
    const nb::handle reduction = PyDict_GetItemWithError(reductions.ptr(), nb::int_(hash).ptr());
    return reduction.is_valid() ? all_reduce_tensor(tensors[0], nb::cast<int>(reduction), timeout) : kNotHere;
  }
  int send(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    return message(FERRULE_SEND, data, count, dtype, peer, timeout);
  }
  int recv(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    return message(FERRULE_RECV, data, count, dtype, peer, timeout);
  }
  int barrier(double timeout) {
    ferrule_operation operation{};
    operation.op = FERRULE_BARRIER;
    return run_one(operation, timeout);
  }
  int run(const std::vector<PyOperation*>& operations, double timeout) {
    const std::vector<ferrule_operation> all = collect(operations);
    return wait([&] { return ferrule_run(group_, all.data(), all.size(), timeout); });
  }
  nb::object start(const std::vector<PyOperation*>& operations, double timeout) {
    const std::vector<ferrule_operation> all = collect(operations);
    ferrule_work* work = nullptr;
    ferrule_status status;
    {
      const nb::gil_scoped_release release;
      status = ferrule_start(group_, all.data(), all.size(), timeout, &work);
    }
    if (status != FERRULE_OK) return nb::cast(static_cast<int>(status));
    return nb::cast(PyWork(work));
  }
  int close() {
    const nb::gil_scoped_release release;
    return ferrule_group_close(group_);
  }
  void abort(const std::string& reason) {
    const nb::gil_scoped_release release;
    ferrule_group_abort(group_, reason.c_str());
  }
  int add_rail(int stream, int peer, int rail, int fd) {
    const nb::gil_scoped_release release;
    return ferrule_group_add_rail(group_, static_cast<ferrule_stream>(stream), peer, rail, fd);
  }
  std::vector<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t>> rails(int stream, int peer) const {
    const nb::gil_scoped_release release;
    const auto wanted = static_cast<ferrule_stream>(stream);
    std::vector<ferrule_rail> all(ferrule_group_rails(group_, wanted, peer, nullptr, 0));
    all.resize(std::min(all.size(), ferrule_group_rails(group_, wanted, peer, all.data(), all.size())));
    std::vector<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t>> states;
    for (const ferrule_rail& one : all) states.emplace_back(one.alive != 0, one.bytes_sent, one.bytes_received, one.deaths);
    return states;
  }
  std::vector<double> time(const std::string& name, std::uintptr_t in, std::uintptr_t out, std::size_t count, int dtype,
                           int samples, double timeout) {
    const nb::gil_scoped_release release;
    const TimedOperation operation{name, pointer(in), pointer(out), count, static_cast<ferrule_dtype>(dtype),
                                            timeout};
    return time_operation(group_, rank_, size_, operation, samples);
  }
  nb::tuple failure() const {
    ferrule_failure failure{};
    ferrule_group_failure(group_, &failure);
    return nb::make_tuple(static_cast<int>(failure.status), failure.rank, failure.seconds,
                          text_of(failure.message));
  }

 private:
  static std::vector<ferrule_operation> collect(const std::vector<PyOperation*>& operations) {
    std::vector<ferrule_operation> all;
    for (const PyOperation* operation : operations) all.push_back(operation->get());
    return all;
  }
  int message(ferrule_op op, std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    ferrule_operation operation{};
    operation.op = op;
    operation.dtype = static_cast<ferrule_dtype>(dtype);
    operation.in = op == FERRULE_SEND ? pointer(data) : nullptr;
    operation.out = op == FERRULE_RECV ? pointer(data) : nullptr;
    operation.count = count;
    operation.root = peer;
    return run_one(operation, timeout);
  }
  int run_one(const ferrule_operation& operation, double timeout) {
    return wait([&] { return ferrule_run(group_, &operation, 1, timeout); });
  }

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

  int rank_;
  int size_;
  ferrule_group* group_ = nullptr;
};

}  // namespace

void bind_group(nb::module_& module) {
  nb::class_<PyOperation>(module, "Operation")
      .def(nb::init<int, int, int, int, std::uintptr_t, std::uintptr_t, std::size_t, std::vector<std::size_t>,
                    std::vector<std::size_t>, bool>(),
           "op"_a, "dtype"_a, "reduction"_a = 0, "root"_a = -1, "source"_a = 0, "target"_a = 0, "count"_a = 0,
           "send_counts"_a = std::vector<std::size_t>(), "recv_counts"_a = std::vector<std::size_t>(),
           "quantized"_a = false)
      .def_prop_ro("op", [](const PyOperation& self) { return static_cast<int>(self.operation.op); });

  nb::class_<PyWork>(module, "Work")
      .def("wait", &PyWork::wait, "timeout"_a)
      .def("then", &PyWork::then, "done"_a)
      .def_prop_ro("source", &PyWork::source);

  nb::class_<PyGroup>(module, "Group")
      .def(nb::init<int, std::uint64_t, const std::vector<PyChannel*>&, const std::vector<PyChannel*>&, PySegment*,
                    const std::vector<int>&, double, double, const Decisions&, const std::vector<int>&,
                    const std::vector<int>&, const PyHeartbeat*, const std::vector<int>&>(),
           "rank"_a, "epoch"_a, "collectives"_a, "messages"_a, "segment"_a.none(), "local_index"_a, "spin_us"_a,
           "yield_us"_a, "decisions"_a = Decisions(), "tree"_a = std::vector<int>(), "ring"_a = std::vector<int>(),
           "heartbeat"_a.none() = nb::none(), "heartbeat_ranks"_a = std::vector<int>())
      .def("all_reduce", &PyGroup::all_reduce)
      .def("all_reduce_tensor", &PyGroup::all_reduce_tensor)
      .def("all_reduce_torch", &PyGroup::all_reduce_torch)
      .def("send", &PyGroup::send)
      .def("recv", &PyGroup::recv)
      .def("barrier", &PyGroup::barrier)
      .def("add_rail", &PyGroup::add_rail, "stream"_a, "peer"_a, "rail"_a, "fd"_a)
      .def("rails", &PyGroup::rails, "stream"_a, "peer"_a)
      .def("time", &PyGroup::time)
      .def("run", &PyGroup::run)
      .def("start", &PyGroup::start)
      .def("close", &PyGroup::close)
      .def("abort", &PyGroup::abort)
      .def("failure", &PyGroup::failure);
}

}  // namespace ferrule
