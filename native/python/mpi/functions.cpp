// The functions and objects by their names in Open MPI.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>

#include "python/mpi/mpi.h"

using ferrule::Dtype;
using ferrule::Op;
using ferrule::Operation;
using ferrule::Reduction;
using ferrule::Status;
using ferrule::mpi::Communicator;
using ferrule::mpi::Datatype;
using ferrule::mpi::Reducer;
using ferrule::mpi::UserFunction;

#pragma GCC visibility push(default)
extern "C" {

Communicator ompi_mpi_comm_world;
Reducer ompi_mpi_op_sum{Reduction::sum, {}, nullptr};
Reducer ompi_mpi_op_max{Reduction::max, {}, nullptr};
Reducer ompi_mpi_op_min{Reduction::min, {}, nullptr};
Datatype ompi_mpi_c_bool{Dtype::boolean};
Datatype ompi_mpi_int8_t{Dtype::i8};
Datatype ompi_mpi_uint8_t{Dtype::u8};
Datatype ompi_mpi_int16_t{Dtype::i16};
Datatype ompi_mpi_uint16_t{Dtype::u16};
Datatype ompi_mpi_int32_t{Dtype::i32};
Datatype ompi_mpi_uint32_t{Dtype::u32};
Datatype ompi_mpi_int64_t{Dtype::i64};
Datatype ompi_mpi_uint64_t{Dtype::u64};
Datatype ompi_mpi_float{Dtype::f32};
Datatype ompi_mpi_double{Dtype::f64};
Datatype ompi_mpi_c_complex{Dtype::f32, 2};

}  // extern "C"
#pragma GCC visibility pop

namespace {

constexpr int kSuccess = 0;
constexpr std::size_t kVersionRoom = 256;
// Bytes of each rank that are gathered at a time for a function that is not the fabric's.
constexpr std::size_t kGathered = 1 << 20;

struct MpiStatus {
  int source;
  int tag;
  int error;
  int cancelled;
  std::size_t bytes;
};

// MLX does not look whether a split gave it a communicator.
const Communicator& member(const Communicator* on) {
  if (on == nullptr) throw std::runtime_error("this rank is in none of the groups that a split made");
  return *on;
}

bool in_place(const void* data) { return data == reinterpret_cast<const void*>(1); }

// MLX hands on 64-bit sizes as int: up to 4 Gi elements nothing is lost.
std::size_t elements(int count) { return static_cast<unsigned>(count); }

// In the words of ferrule.fabric, which are not asked for: Python's lock may be held by who waits for this operation.
[[noreturn]] void fail(const Communicator& on, Status status, const Operation& operation) {
  if (status == Status::invalid) {
    const auto index = static_cast<std::size_t>(operation.op);
    throw std::runtime_error("rank " + std::to_string(on.rank) + " of " + std::to_string(on.size) + " cannot do " +
                             ferrule::kOpNames[index] + " with this element type or rank " +
                             std::to_string(operation.root));
  }
  const ferrule::GroupFailure failure = on.group->failure();
  std::string text = failure.message;
  if (failure.status == Status::peer_lost && failure.rank >= 0 && failure.rank < on.size) {
    const std::string name = "rank " + std::to_string(failure.rank) + " ";
    text = on.places->at(static_cast<std::size_t>(failure.rank)) +
           (text.starts_with(name) ? " " + text.substr(name.size()) : " was lost: " + text);
    if (failure.seconds > 0) {
      char seconds[48];
      std::snprintf(seconds, sizeof seconds, " (%.3g s into an operation)", failure.seconds);
      text += seconds;
    }
  } else if (failure.status == Status::timeout) {
    text = "Timed out on rank " + std::to_string(on.rank) + ": " + text;
  }
  throw std::runtime_error(text + "; the group is closed on every rank");
}

// Streams of MLX are threads, of which several may use a group at once: all but one then wait for a thread of the
// group.
void run(const Communicator& on, const Operation& operation) {
  if (on.group == nullptr) throw std::runtime_error("a process by itself has nobody to talk to");
  Status status = on.group->run(&operation, 1, on.timeout);
  if (status == Status::busy) {
    std::shared_ptr<ferrule::Work> work;
    status = on.group->start(&operation, 1, on.timeout, work);
    if (status == Status::ok) status = work->wait(std::numeric_limits<double>::max());
  }
  if (status != Status::ok) fail(on, status, operation);
}

void gather(const void* in, std::size_t count, const Datatype& type, void* out, const Communicator& on) {
  Operation operation;
  operation.op = Op::all_gather;
  operation.dtype = type.dtype;
  operation.in = in;
  operation.out = out;
  operation.count = count * type.parts;
  run(on, operation);
}

// The same sum on every rank: each gathers all and goes through the ranks in their order.
void reduce_by_function(const std::byte* in, std::byte* out, std::size_t count, Datatype* type, UserFunction* function,
                        const Communicator& on) {
  const std::size_t element = type->bytes();
  const std::size_t most = std::max<std::size_t>(1, kGathered / element);
  const auto ranks = static_cast<std::size_t>(on.size);
  std::vector<std::byte> gathered(std::min(most, count) * element * ranks);
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t part = std::min(most, count - at);
    gather(in + at * element, part, *type, gathered.data(), on);
    std::copy_n(gathered.data(), part * element, out + at * element);
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      int left = static_cast<int>(part);
      function(gathered.data() + rank * part * element, out + at * element, &left, &type);
    }
  }
}

Operation message(Op op, const void* in, void* out, int count, const Datatype& type, int peer) {
  Operation operation;
  operation.op = op;
  operation.dtype = type.dtype;
  operation.root = peer;
  operation.in = in;
  operation.out = out;
  operation.count = elements(count) * type.parts;
  return operation;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// MLX wants Open MPI by name: handles of other kinds of MPI are numbers.
int MPI_Get_library_version(char* version, int* length) {
  *length = std::snprintf(version, kVersionRoom, "Ferrule, with the binary interface of Open MPI");
  return kSuccess;
}

int MPI_Init(int*, char***) {
  ferrule::mpi::open_world(ompi_mpi_comm_world);
  return kSuccess;
}

// Groups say goodbye when Python ends (ferrule.fabric.close_all), which is before MLX calls this.
int MPI_Finalize() { return kSuccess; }

int MPI_Comm_rank(const Communicator* on, int* rank) {
  *rank = member(on).rank;
  return kSuccess;
}

int MPI_Comm_size(const Communicator* on, int* size) {
  *size = member(on).size;
  return kSuccess;
}

int MPI_Comm_split(const Communicator* on, int color, int key, Communicator** made) {
  if (member(on).owner == nullptr) throw std::runtime_error("a process by itself cannot be split");
  *made = ferrule::mpi::split(*on, color, key);
  return kSuccess;
}

int MPI_Comm_free(Communicator** on) {
  if (*on != nullptr) ferrule::mpi::free(**on);
  *on = nullptr;
  return kSuccess;
}

int MPI_Allreduce(const void* in, void* out, int count, Datatype* type, const Reducer* by, const Communicator* on) {
  const void* const from = in_place(in) ? out : in;
  if (by->function != nullptr) {
    reduce_by_function(static_cast<const std::byte*>(from), static_cast<std::byte*>(out), elements(count), type,
                       by->function, *on);
    return kSuccess;
  }
  Operation operation = message(Op::all_reduce, from, out, count, *type, -1);
  operation.reduction = by->reduction;
  if (by->dtype) {
    operation.dtype = *by->dtype;
    operation.count = elements(count);
  }
  const bool summed_by_parts = type->parts == 1 || by->reduction == Reduction::sum;
  if (by->dtype ? size_of(*by->dtype) != type->bytes() : type->opaque || !summed_by_parts) {
    throw std::runtime_error("this reduction is not one of elements of " + std::to_string(type->bytes()) + " bytes");
  }
  run(*on, operation);
  return kSuccess;
}

int MPI_Allgather(const void* in, int count, const Datatype* type, void* out, int, const Datatype*,
                  const Communicator* on) {
  gather(in, elements(count), *type, out, *on);
  return kSuccess;
}

int MPI_Send(const void* in, int count, const Datatype* type, int peer, int, const Communicator* on) {
  run(*on, message(Op::send, in, nullptr, count, *type, peer));
  return kSuccess;
}

int MPI_Recv(void* out, int count, const Datatype* type, int peer, int tag, const Communicator* on, MpiStatus* status) {
  run(*on, message(Op::recv, nullptr, out, count, *type, peer));
  if (status != nullptr) *status = {peer, std::max(tag, 0), kSuccess, 0, elements(count) * type->bytes()};
  return kSuccess;
}

int MPI_Type_contiguous(int count, const Datatype* of, Datatype** made) {
  *made = new Datatype{Dtype::u8, elements(count) * of->bytes(), true};
  return kSuccess;
}

int MPI_Type_commit(Datatype**) { return kSuccess; }

int MPI_Op_create(UserFunction* function, int, Reducer** made) {
  *made = new Reducer(ferrule::mpi::recognise(function).value_or(Reducer{Reduction::sum, {}, function}));
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
