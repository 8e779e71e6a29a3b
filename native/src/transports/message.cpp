#include "transports/message.h"

namespace ferrule {
namespace {

const char* op_name(Op op) {
  switch (op) {
    case Op::none:
      return "nothing";
    case Op::all_reduce:
      return "all_reduce";
    case Op::all_gather:
      return "all_gather";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::broadcast:
      return "broadcast";
    case Op::send:
    case Op::recv:
      return "send/recv";
    case Op::barrier:
      return "barrier";
    case Op::reduce:
      return "reduce";
    case Op::gather:
      return "gather";
    case Op::scatter:
      return "scatter";
    case Op::all_to_all:
      return "all_to_all";
    case Op::goodbye:
      return "close";
    case Op::abort:
      return "abort";
  }
  return "an unknown operation";
}

constexpr const char* kDtypeNames[] = {"float64", "float32", "bfloat16", "float16", "int8",
                                       "uint8",   "int32",   "int64",    "bool"};
constexpr const char* kReductionNames[] = {"sum", "prod", "min", "max", "avg"};

}  // namespace

std::string describe(const Call& call) {
  std::string text = op_name(call.op);
  if (call.op == Op::barrier) return text + "() #" + std::to_string(call.sequence);
  text += '(';
  const bool reduces = call.op == Op::all_reduce || call.op == Op::reduce_scatter || call.op == Op::reduce;
  const bool rooted =
      call.op == Op::broadcast || call.op == Op::reduce || call.op == Op::gather || call.op == Op::scatter;
  if (reduces && call.reduction < kReductions) {
    text += kReductionNames[call.reduction];
    text += ", ";
  }
  if (call.dtype < kDtypes) text += kDtypeNames[call.dtype];
  text += ", " + std::to_string(call.bytes) + " bytes";
  if (rooted) text += ", root " + std::to_string(call.root);
  return text + ") #" + std::to_string(call.sequence);
}

Failure told_by(int rank, const Failure& cause) {
  const bool second_hand = cause.status == Status::aborted && cause.rank >= 0;
  if (cause.status == Status::peer_lost || second_hand) return {cause.status, cause.rank, cause.message};
  return {cause.status, rank, "rank " + std::to_string(rank) + " gave up: " + cause.message};
}

Failure heard_by(int rank, const Failure& told) {
  if (told.status != Status::peer_lost) return {Status::aborted, told.rank, told.message};
  if (told.rank != rank) return told;
  return {Status::aborted, rank, "the other ranks gave this one up: " + told.message};
}

}  // namespace ferrule
