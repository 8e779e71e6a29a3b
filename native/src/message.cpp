#include "message.h"

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
      return "send/recv";
    case Op::barrier:
      return "barrier";
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
  if ((call.op == Op::all_reduce || call.op == Op::reduce_scatter) && call.reduction < 5) {
    text += kReductionNames[call.reduction];
    text += ", ";
  }
  if (call.dtype < 9) text += kDtypeNames[call.dtype];
  text += ", " + std::to_string(call.bytes) + " bytes";
  if (call.op == Op::broadcast) text += ", root " + std::to_string(call.root);
  return text + ") #" + std::to_string(call.sequence);
}

}  // namespace ferrule
