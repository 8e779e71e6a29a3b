#include "python/group/group.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "group/group.h"
#include "python/bench/timing.h"
#include "python/tensors.h"
#include "python/text.h"
#include "python/transports/channels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

unsigned long main_thread = 0;  // by Python's number

// Signals are for the main thread. Another one must not ask for the interpreter's lock: who waits for its operation may
// hold it, and once Python ends nobody gets it any more.
int python_wants_to_stop(void*) {
  if (PyThread_get_thread_ident() != main_thread) return 0;
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals();
}

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

Clock::duration microseconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(value));
}

// One operation for Group.run and Group.start, with what an Operation only points to. With a region it must stay until
// it is done.
struct PyOperation {
  Operation operation;
  std::shared_ptr<DeviceRegion> region;
  bool placed = false;
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> recv_counts;

  PyOperation(int op, int dtype, int reduction, int root, std::uintptr_t in, std::uintptr_t out, std::size_t count,
              std::vector<std::size_t> sends, std::vector<std::size_t> receives, bool quantized,
              std::shared_ptr<DeviceRegion> registered, std::uint64_t device)
      : operation{.op = static_cast<Op>(op),
                  .dtype = static_cast<Dtype>(dtype),
                  .reduction = static_cast<Reduction>(reduction),
                  .quantized = quantized,
                  .root = root,
                  .in = pointer(in),
                  .out = pointer(out),
                  .count = count,
                  .device = device},
        region(std::move(registered)),
        send_counts(std::move(sends)),
        recv_counts(std::move(receives)) {}
  Operation get() {
    Operation whole = operation;
    whole.region = region.get();
    whole.placed = &placed;
    whole.send_counts = send_counts.empty() ? nullptr : send_counts.data();
    whole.recv_counts = recv_counts.empty() ? nullptr : recv_counts.data();
    return whole;
  }
};

class PyWork {
 public:
  explicit PyWork(std::shared_ptr<Work> work) : work_(std::move(work)) {}

  int wait(double timeout) const {
    constexpr double kLookUp = 0.1;  // signals are for the main thread, which may be this one
    for (;;) {
      const double slice = std::min(timeout, kLookUp);
      Status status;
      {
        const nb::gil_scoped_release release;
        status = work_->wait(slice);
      }
      timeout -= slice;
      if (status != Status::pending || timeout <= 0) return static_cast<int>(status);
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  int source() const { return work_->source(); }
  void then(nb::callable done) const {
    // Copied and freed by threads that do not hold the interpreter's lock, so counted by other means than its own.
    auto held = std::shared_ptr<nb::callable>(new nb::callable(std::move(done)), [](nb::callable* call) {
      const nb::gil_scoped_acquire gil;
      delete call;
    });
    const nb::gil_scoped_release release;
    work_->then([held = std::move(held)] {
      const nb::gil_scoped_acquire gil;
      try {
        (*held)();
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("a callback of Work.then");
      }
    });
  }

 private:
  std::shared_ptr<Work> work_;
};

using Decisions = std::vector<std::tuple<int, std::uint64_t, int>>;

class PyGroup {
 public:
  PyGroup(int rank, std::uint64_t epoch, const std::vector<PyChannel*>& collectives,
          const std::vector<PyChannel*>& messages, PySegment* segment, const std::vector<int>& local_index,
          double spin_us, double yield_us, const Decisions& decisions, const std::vector<int>& tree,
          const std::vector<int>& ring, const PyHeartbeat* heartbeat, const std::vector<int>& heartbeat_ranks)
      : rank_(rank), size_(static_cast<int>(collectives.size())) {
    GroupOptions options;
    options.rank = rank;
    options.epoch = epoch;
    options.local_index = local_index;
    options.wait = {microseconds(spin_us), microseconds(yield_us), python_wants_to_stop, nullptr};
    for (const auto& [op, up_to, algorithm] : decisions) {
      options.strategy.decisions.push_back({static_cast<Op>(op), up_to, static_cast<Algorithm>(algorithm)});
    }
    options.strategy.tree = tree;
    options.strategy.ring = ring;
    if (heartbeat != nullptr) options.heartbeat = heartbeat->shared();
    options.heartbeat_ranks = heartbeat_ranks;
    if (segment != nullptr) options.segment = segment->release();
    for (const auto& [stream, channels] : {std::pair{0, &collectives}, std::pair{1, &messages}}) {
      for (PyChannel* const channel : *channels) {
        options.channels[stream].push_back(channel == nullptr ? nullptr : channel->release());
      }
    }
    group_ = std::make_unique<Group>(std::move(options));
  }
  PyGroup(const PyGroup&) = delete;
  PyGroup& operator=(const PyGroup&) = delete;
  ~PyGroup() {
    const nb::gil_scoped_release release;
    group_.reset();
  }

  // Of the native group, for programs that call it themselves.
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(group_.get()); }

  // The calls that must be quick; everything else goes through run and start.
  int all_reduce(std::uintptr_t data, std::size_t count, int dtype, int reduction, double timeout) {
    Operation operation;
    operation.op = Op::all_reduce;
    operation.dtype = static_cast<Dtype>(dtype);
    operation.reduction = static_cast<Reduction>(reduction);
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
    return message(Op::send, data, count, dtype, peer, timeout);
  }
  int recv(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    return message(Op::recv, data, count, dtype, peer, timeout);
  }
  int barrier(double timeout) {
    Operation operation;
    operation.op = Op::barrier;
    return run_one(operation, timeout);
  }
  int run(const std::vector<PyOperation*>& operations, double timeout) {
    const std::vector<Operation> all = collect(operations);
    return wait([&] { return group_->run(all.data(), all.size(), timeout); });
  }
  nb::object start(const std::vector<PyOperation*>& operations, double timeout) {
    const std::vector<Operation> all = collect(operations);
    std::shared_ptr<Work> work;
    Status status;
    {
      const nb::gil_scoped_release release;
      status = group_->start(all.data(), all.size(), timeout, work);
    }
    if (status != Status::ok) return nb::cast(static_cast<int>(status));
    return nb::cast(PyWork(std::move(work)));
  }
  int close() {
    const nb::gil_scoped_release release;
    return static_cast<int>(group_->close());
  }
  void abort(const std::string& reason) {
    const nb::gil_scoped_release release;
    group_->abort(reason);
  }
  int add_rail(int stream, int peer, int rail, int fd) {
    const nb::gil_scoped_release release;
    return static_cast<int>(group_->add_rail(stream, peer, rail, fd));
  }
  std::vector<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t, bool>> rails(int stream, int peer) const {
    const nb::gil_scoped_release release;
    std::vector<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t, bool>> states;
    for (const RailState& one : group_->rails(stream, peer)) {
      states.emplace_back(one.alive, one.bytes_sent, one.bytes_received, one.deaths, one.stalled);
    }
    return states;
  }
  std::shared_ptr<DeviceRegion> register_memory(int peer, int fd, std::uint64_t offset, std::size_t length,
                                                std::uint64_t address) const {
    return without_lock([&] { return group_->register_memory(peer, {fd, offset, length, address}); });
  }
  std::vector<double> time(const std::string& name, std::uintptr_t in, std::uintptr_t out, std::size_t count, int dtype,
                           int samples, double timeout) {
    const nb::gil_scoped_release release;
    const TimedOperation operation{name, pointer(in), pointer(out), count, static_cast<Dtype>(dtype), timeout};
    return time_operation(*group_, rank_, size_, operation, samples);
  }
  nb::tuple failure() const {
    const GroupFailure failure = group_->failure();
    return nb::make_tuple(static_cast<int>(failure.status), failure.rank, failure.seconds, text_of(failure.message));
  }

 private:
  static std::vector<Operation> collect(const std::vector<PyOperation*>& operations) {
    std::vector<Operation> all;
    for (PyOperation* operation : operations) all.push_back(operation->get());
    return all;
  }
  int message(Op op, std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    Operation operation;
    operation.op = op;
    operation.dtype = static_cast<Dtype>(dtype);
    operation.in = op == Op::send ? pointer(data) : nullptr;
    operation.out = op == Op::recv ? pointer(data) : nullptr;
    operation.count = count;
    operation.root = peer;
    return run_one(operation, timeout);
  }
  int run_one(const Operation& operation, double timeout) {
    return wait([&] { return group_->run(&operation, 1, timeout); });
  }

  // Other Python threads run while this one waits for its peers.
  template <class Operation>
  static int wait(Operation&& operation) {
    Status status;
    {
      const nb::gil_scoped_release release;
      status = operation();
    }
    // Later calls on an interrupted group get the same status, but the signal was raised once and for all.
    if (status == Status::interrupted && PyErr_Occurred() != nullptr) throw nb::python_error();
    return static_cast<int>(status);
  }

  int rank_;
  int size_;
  std::unique_ptr<Group> group_;
};

}  // namespace

void bind_group(nb::module_& module) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::class_<DeviceRegion>(module, "DeviceRegion");
  nb::class_<PyOperation>(module, "Operation")
      .def(nb::init<int, int, int, int, std::uintptr_t, std::uintptr_t, std::size_t, std::vector<std::size_t>,
                    std::vector<std::size_t>, bool, std::shared_ptr<DeviceRegion>, std::uint64_t>(),
           "op"_a, "dtype"_a, "reduction"_a = 0, "root"_a = -1, "source"_a = 0, "target"_a = 0, "count"_a = 0,
           "send_counts"_a = std::vector<std::size_t>(), "recv_counts"_a = std::vector<std::size_t>(),
           "quantized"_a = false, "region"_a.none() = nb::none(), "device"_a = 0)
      .def_ro("placed", &PyOperation::placed)
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
      .def_prop_ro("address", &PyGroup::address)
      .def("all_reduce", &PyGroup::all_reduce)
      .def("all_reduce_tensor", &PyGroup::all_reduce_tensor)
      .def("all_reduce_torch", &PyGroup::all_reduce_torch)
      .def("send", &PyGroup::send)
      .def("recv", &PyGroup::recv)
      .def("barrier", &PyGroup::barrier)
      .def("add_rail", &PyGroup::add_rail, "stream"_a, "peer"_a, "rail"_a, "fd"_a)
      .def("rails", &PyGroup::rails, "stream"_a, "peer"_a)
      .def("register_memory", &PyGroup::register_memory, "peer"_a, "fd"_a, "offset"_a, "length"_a, "address"_a)
      .def("time", &PyGroup::time)
      .def("run", &PyGroup::run)
      .def("start", &PyGroup::start)
      .def("close", &PyGroup::close)
      .def("abort", &PyGroup::abort)
      .def("failure", &PyGroup::failure);
}

}  // namespace ferrule
