#include "transports/message.h"

#include <iterator>

namespace ferrule {
namespace {

const char* op_name(Op op) {
  const auto number = static_cast<std::size_t>(op);
  if (op == Op::send || op == Op::recv) return "send/recv";  // the header is that of both
  if (op == Op::goodbye) return "close";
  if (op == Op::abort) return "abort";
  return number < std::size(kOpNames) ? kOpNames[number] : "an unknown operation";
}

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

Failure mismatch(int rank, const Call& ours, int other, const Call& theirs) {
  return {Status::mismatch, other,
          "rank " + std::to_string(rank) + " called " + describe(ours) + " but rank " + std::to_string(other) +
              " called " + describe(theirs)};
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
