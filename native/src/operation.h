// Operations of a group: what a caller asks for, and how it ended. The numbers are also those of the Python module.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule {

enum class Status : std::uint8_t {
  ok,
  peer_lost,    // a peer's connection ended without a goodbye, or it left while it was needed
  timeout,      // the deadline passed although every peer seems alive
  mismatch,     // the ranks called different operations
  invalid,      // an argument cannot be used; the group lives on
  aborted,      // the group was aborted or closed on this rank, or given up by another
  interrupted,  // the interrupt hook asked to stop
  busy,         // another thread is inside an operation of this group; the group lives on
  system,       // the operating system refused something
  pending,      // the work is not done yet; it goes on
};
// Names by number: of these, and of all below.
constexpr const char* kStatusNames[] = {"OK",      "PEER_LOST",   "TIMEOUT", "MISMATCH", "INVALID",
                                        "ABORTED", "INTERRUPTED", "BUSY",    "SYSTEM",   "PENDING"};

enum class Dtype : std::uint8_t { f64, f32, bf16, f16, i8, u8, i32, i64, boolean, i16, u16, u32, u64 };
constexpr const char* kDtypeNames[] = {"float64", "float32", "bfloat16", "float16", "int8",   "uint8", "int32",
                                       "int64",   "bool",    "int16",    "uint16",  "uint32", "uint64"};
constexpr int kDtypes = 13;

// In bytes; 0 when there is no such type.
constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::i64:
    case Dtype::u64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
    case Dtype::u32:
      return 4;
    case Dtype::bf16:
    case Dtype::f16:
    case Dtype::i16:
    case Dtype::u16:
      return 2;
    case Dtype::i8:
    case Dtype::u8:
    case Dtype::boolean:
      return 1;
  }
  return 0;
}

// Begin of part `index` of `count` nearly equal ones in an array of `bytes`. Not index * elements / count: that
// overflows for huge arrays.
constexpr std::size_t part_begin(std::size_t bytes, std::size_t element, std::size_t index, std::size_t count) {
  const std::size_t elements = bytes / element;
  const std::size_t rest = elements % count;
  return (elements / count * index + (index < rest ? index : rest)) * element;
}

// Every reduction takes the ranks in the order 0, 1, 2...; bf16 and f16 accumulate in f32 and round once. Integers wrap
// around; avg of integers divides the sum towards zero. Of booleans sum and max are or, prod and min are and, avg has
// no meaning and is invalid. min and max hand a NaN on.
enum class Reduction : std::uint8_t { sum, prod, min, max, avg };
constexpr const char* kReductionNames[] = {"sum", "prod", "min", "max", "avg"};
constexpr int kReductions = 5;

// A group has two streams, ordered queues of operations, each with connections of its own: what happens on one never
// waits for the other.
enum class Stream : std::uint8_t { collectives, messages };
constexpr const char* kStreamNames[] = {"collectives", "messages"};
constexpr int kStreams = 2;

// Algorithm of a collective over channels. Ranks that all share one segment have their own ways.
enum class Algorithm : std::uint8_t {
  once,      // every rank sends all to every other
  pieces,    // every rank reduces one piece and sends the result to every other
  doubling,  // log2(size) rounds, what is known doubles in each
  tree,      // along a spanning tree, pipelined
  ring,      // around a ring, both ways at once
};
constexpr const char* kAlgorithmNames[] = {"once", "pieces", "doubling", "tree", "ring"};

// The values stand in message headers.
enum class Op : std::uint8_t {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  send,
  barrier,
  reduce,
  gather,
  scatter,
  all_to_all,
  recv,            // its message says send
  goodbye = 0x80,  // not an operation: the peer closed its group in an orderly way
  abort = 0x81,    // the peer gave up; root names the rank at fault
};
constexpr const char* kOpNames[] = {"nothing", "all_reduce", "all_gather", "reduce_scatter", "broadcast",  "send",
                                    "barrier", "reduce",     "gather",     "scatter",        "all_to_all", "recv"};

// As the peer of recv: the message that comes first, from all ranks in turn.
constexpr int kAnyRank = -1;

struct DeviceRegion;

// One operation. count is what one rank gives (or gets, for reduce_scatter and scatter), in elements.
//
//   all_reduce      count of in -> count of out; in may be out, or nullptr for the same
//   all_gather      count of in -> size * count of out; in may be this rank's place in out
//   reduce_scatter  size * count of in (unchanged) -> count of out, which must not overlap
//   broadcast       count of out, from root to all
//   reduce          count of in -> count of out at the root (in may be out); elsewhere in is unchanged, out unused
//   gather          count of in -> size * count of out at the root
//   scatter         size * count of in at the root -> count of out
//   all_to_all      size parts of in -> size parts of out, in the order of ranks, not overlapping; count elements
//                   each, or send_counts[rank] and recv_counts[rank] of them
//   send            count of in to the peer; returns when the data are buffered, and at least 256 KiB per peer fit
//                   before the receiver takes them
//   recv            count of out from the peer. With `device`: to that address, and `placed` becomes true; or, where
//   the
//                   sender began before it knew of that address, to out. A send with `device` reads there, not in
//   barrier         nothing
struct Operation {
  Op op = Op::none;
  Dtype dtype = Dtype::f64;
  Reduction reduction = Reduction::sum;
  bool quantized = false;  // all_reduce of f32, bf16, f16 by sum or avg: send 8-bit blocks instead of numbers
  int root = -1;           // or the peer of send and recv
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  const std::size_t* send_counts = nullptr;  // size of them; or nullptr
  const std::size_t* recv_counts = nullptr;
  // Sends and receives: an address in a region that the channel to the peer has registered.
  const DeviceRegion* region = nullptr;
  std::uint64_t device = 0;
  bool* placed = nullptr;
};

// Up to this many bytes (of the whole array), this operation uses this algorithm.
struct Decision {
  Op op;
  std::uint64_t up_to_bytes;
  Algorithm algorithm;
};

}  // namespace ferrule
