// The module ferrule._native: the C ABI for Python, as thin as it goes. Arrays come as addresses and counts, because
// asking a tensor for its address is much cheaper than any protocol for exchanging arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ferrule/ferrule.h"
#include "heartbeat.h"
#include "raw.h"
#include "tensors.h"
#include "timing.h"
#include "verbs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ferrule::ErrorText;
using ferrule::PyHeartbeat;
using ferrule::text_of;

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

class PyChannel {
 public:
  explicit PyChannel(ferrule_channel* channel) : channel_(channel) {}
  PyChannel(PyChannel&& other) noexcept : channel_(other.release()) {}
  PyChannel& operator=(PyChannel&&) = delete;
  ~PyChannel() {
    if (channel_ != nullptr) ferrule_channel_destroy(channel_);
  }

  static PyChannel tcp(int rank, int peer, int fd, std::uint64_t epoch) {
    const ferrule_ends ends{rank, peer, fd, epoch};
    return PyChannel(ferrule_channel_tcp(&ends));
  }
  static PyChannel shm(int rank, int peer, int fd, std::uint64_t epoch, PySegment& segment, int lane, int mine,
                       int theirs) {
    const ferrule_ends ends{rank, peer, fd, epoch};
    return PyChannel(ferrule_channel_shm(&ends, segment.get(), static_cast<ferrule_lane>(lane), mine, theirs));
  }
  static PyChannel verbs(int rank, int peer, int fd, std::uint64_t epoch, PyVerbsEndpoint& endpoint) {
    const ferrule_ends ends{rank, peer, fd, epoch};
    return PyChannel(ferrule_channel_verbs(&ends, endpoint.release()));
  }
  static PyChannel rails(int rank, int peer, std::uint64_t epoch, const std::vector<int>& fds, int best,
                         double stall_seconds) {
    const ferrule_ends ends{rank, peer, -1, epoch};
    ferrule_channel* const channel = ferrule_channel_rails(&ends, fds.data(), fds.size(), best, stall_seconds);
    if (channel == nullptr) throw nb::value_error("best is one of the rails, and stall_seconds is positive");
    return PyChannel(channel);
  }
  std::string transport() const { return channel_ == nullptr ? "" : ferrule_channel_transport(channel_); }
  ferrule_channel* get() const { return channel_; }
  ferrule_channel* release() { return std::exchange(channel_, nullptr); }

 private:
  ferrule_channel* channel_;
};

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
    std::vector<ferrule_channel*> lanes[2];
    for (const auto* channels : {&collectives, &messages}) {
      for (const PyChannel* channel : *channels) {
        lanes[channels == &messages].push_back(channel == nullptr ? nullptr : channel->get());
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
    options.collectives = lanes[0].data();
    options.messages = lanes[1].data();
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
  int send(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    ferrule_operation operation{};
    operation.op = FERRULE_SEND;
    operation.dtype = static_cast<ferrule_dtype>(dtype);
    operation.in = pointer(data);
    operation.count = count;
    operation.root = peer;
    return run_one(operation, timeout);
  }
  int recv(std::uintptr_t data, std::size_t count, int dtype, int peer, double timeout) {
    ferrule_operation operation{};
    operation.op = FERRULE_RECV;
    operation.dtype = static_cast<ferrule_dtype>(dtype);
    operation.out = pointer(data);
    operation.count = count;
    operation.root = peer;
    return run_one(operation, timeout);
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
  int add_rail(int lane, int peer, int rail, int fd) {
    const nb::gil_scoped_release release;
    return ferrule_group_add_rail(group_, static_cast<ferrule_lane>(lane), peer, rail, fd);
  }
  std::vector<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t>> rails(int lane, int peer) const {
    const nb::gil_scoped_release release;
    const auto wanted = static_cast<ferrule_lane>(lane);
    std::vector<ferrule_rail> all(ferrule_group_rails(group_, wanted, peer, nullptr, 0));
    all.resize(std::min(all.size(), ferrule_group_rails(group_, wanted, peer, all.data(), all.size())));
    std::vector<std::tuple<bool, std::uint64_t, std::uint64_t, std::uint32_t>> states;
    for (const ferrule_rail& one : all) states.emplace_back(one.alive != 0, one.bytes_sent, one.bytes_received, one.deaths);
    return states;
  }
  std::vector<double> time(const std::string& name, std::uintptr_t in, std::uintptr_t out, std::size_t count, int dtype,
                           int samples, double timeout) {
    const nb::gil_scoped_release release;
    const ferrule::TimedOperation operation{name, pointer(in), pointer(out), count, static_cast<ferrule_dtype>(dtype),
                                            timeout};
    return ferrule::time_operation(group_, rank_, size_, operation, samples);
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

nb::dict numbered(const std::vector<std::pair<const char*, int>>& names) {
  nb::dict all;
  for (const auto& [name, value] : names) all[name] = value;
  return all;
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Ferrule's native data plane. Use ferrule.fabric; this module checks no arguments.";
  // torch's registries outlive this module and may hold groups until the process ends.
  nb::set_leak_warnings(false);

  nb::class_<PySegment>(module, "Segment")
      .def_static("create", &PySegment::create, "name"_a, "token"_a, "ranks"_a)
      .def_static("open", &PySegment::open, "name"_a, "token"_a, "ranks"_a)
      .def_static("unlink", [](const std::string& name) { return ferrule_segment_unlink(name.c_str()) == FERRULE_OK; })
      .def("close", &PySegment::close);

  nb::class_<PyChannel>(module, "Channel")
      .def_static("tcp", &PyChannel::tcp, "rank"_a, "peer"_a, "fd"_a, "epoch"_a)
      .def_static("shm", &PyChannel::shm, "rank"_a, "peer"_a, "fd"_a, "epoch"_a, "segment"_a, "lane"_a, "mine"_a,
                  "theirs"_a)
      .def_static("verbs", &PyChannel::verbs, "rank"_a, "peer"_a, "fd"_a, "epoch"_a, "endpoint"_a)
      .def_static("rails", &PyChannel::rails, "rank"_a, "peer"_a, "epoch"_a, "fds"_a, "best"_a, "stall_seconds"_a)
      .def_prop_ro("transport", &PyChannel::transport);

  bind_tensors(module);
  bind_verbs(module);

  nb::class_<PyOperation>(module, "Operation")
      .def(nb::init<int, int, int, int, std::uintptr_t, std::uintptr_t, std::size_t, std::vector<std::size_t>,
                    std::vector<std::size_t>, bool>(),
           "op"_a, "dtype"_a, "reduction"_a = 0, "root"_a = -1, "source"_a = 0, "target"_a = 0, "count"_a = 0,
           "send_counts"_a = std::vector<std::size_t>(), "recv_counts"_a = std::vector<std::size_t>(),
           "quantized"_a = false)
      .def_prop_ro("op", [](const PyOperation& self) { return static_cast<int>(self.operation.op); });

  ferrule::bind_heartbeat(module);

  nb::class_<PyWork>(module, "Work").def("wait", &PyWork::wait, "timeout"_a).def("then", &PyWork::then, "done"_a);

  nb::class_<PyGroup>(module, "Group")
      .def(nb::init<int, std::uint64_t, const std::vector<PyChannel*>&, const std::vector<PyChannel*>&, PySegment*,
                    const std::vector<int>&, double, double, const Decisions&, const std::vector<int>&,
                    const std::vector<int>&, const PyHeartbeat*, const std::vector<int>&>(),
           "rank"_a, "epoch"_a, "collectives"_a, "messages"_a, "segment"_a.none(), "local_index"_a, "spin_us"_a,
           "yield_us"_a, "decisions"_a = Decisions(), "tree"_a = std::vector<int>(), "ring"_a = std::vector<int>(),
           "heartbeat"_a.none() = nb::none(), "heartbeat_ranks"_a = std::vector<int>())
      .def("all_reduce", &PyGroup::all_reduce)
      .def("send", &PyGroup::send)
      .def("recv", &PyGroup::recv)
      .def("barrier", &PyGroup::barrier)
      .def("add_rail", &PyGroup::add_rail, "lane"_a, "peer"_a, "rail"_a, "fd"_a)
      .def("rails", &PyGroup::rails, "lane"_a, "peer"_a)
      .def("time", &PyGroup::time)
      .def("run", &PyGroup::run)
      .def("start", &PyGroup::start)
      .def("close", &PyGroup::close)
      .def("abort", &PyGroup::abort)
      .def("failure", &PyGroup::failure);

  module.def(
      "raw_tcp_ping_pong",
      [](int fd, std::uintptr_t data, std::size_t bytes, int rounds, bool starts, double timeout) {
        return ferrule::raw_tcp_ping_pong(fd, reinterpret_cast<void*>(data), bytes, rounds, starts, timeout);
      },
      nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "raw_shm_ping_pong",
      [](std::uintptr_t memory, std::uintptr_t data, std::size_t bytes, int rounds, bool starts, double timeout) {
        return ferrule::raw_shm_ping_pong(reinterpret_cast<void*>(memory), reinterpret_cast<void*>(data), bytes, rounds,
                                          starts, timeout);
      },
      nb::call_guard<nb::gil_scoped_release>());
  module.def("raw_shm_bytes", &ferrule::raw_shm_bytes);
  module.def(
      "raw_memcpy",
      [](std::uintptr_t target, std::uintptr_t source, std::size_t bytes, int rounds) {
        return ferrule::raw_memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes, rounds);
      },
      nb::call_guard<nb::gil_scoped_release>());

  module.attr("STATUS") = numbered({{"OK", FERRULE_OK},
                                    {"PEER_LOST", FERRULE_PEER_LOST},
                                    {"TIMEOUT", FERRULE_TIMEOUT},
                                    {"MISMATCH", FERRULE_MISMATCH},
                                    {"INVALID", FERRULE_INVALID},
                                    {"ABORTED", FERRULE_ABORTED},
                                    {"INTERRUPTED", FERRULE_INTERRUPTED},
                                    {"BUSY", FERRULE_BUSY},
                                    {"SYSTEM", FERRULE_SYSTEM},
                                    {"PENDING", FERRULE_PENDING}});
  module.attr("OPS") = numbered({{"all_reduce", FERRULE_ALL_REDUCE},
                                 {"all_gather", FERRULE_ALL_GATHER},
                                 {"reduce_scatter", FERRULE_REDUCE_SCATTER},
                                 {"broadcast", FERRULE_BROADCAST},
                                 {"send", FERRULE_SEND},
                                 {"barrier", FERRULE_BARRIER},
                                 {"reduce", FERRULE_REDUCE},
                                 {"gather", FERRULE_GATHER},
                                 {"scatter", FERRULE_SCATTER},
                                 {"all_to_all", FERRULE_ALL_TO_ALL},
                                 {"recv", FERRULE_RECV}});
  module.attr("ALGORITHMS") = numbered({{"once", FERRULE_ONCE},
                                        {"pieces", FERRULE_PIECES},
                                        {"doubling", FERRULE_DOUBLING},
                                        {"tree", FERRULE_TREE},
                                        {"ring", FERRULE_RING}});
  module.attr("LANES") = numbered({{"collectives", FERRULE_COLLECTIVES}, {"messages", FERRULE_MESSAGES}});

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
