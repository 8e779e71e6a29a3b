// From an operation as the caller gave it to the way that moves the data.
#include <algorithm>
#include <cstring>

#include "collectives/local.h"
#include "group/group.h"

namespace ferrule {
namespace {

// Up to this size it is cheaper to copy arrays together than to send each by itself.
constexpr std::size_t kPackBytes = 256 << 10;
// Bytes, with the header, that always fit into the rings of shared memory when they are empty.
constexpr std::size_t kRingBytes = 120 << 10;

std::size_t bytes_of(const Operation& operation) { return operation.count * size_of(operation.dtype); }

const std::byte* input(const Operation& operation) { return static_cast<const std::byte*>(operation.in); }
std::byte* output(const Operation& operation) { return static_cast<std::byte*>(operation.out); }

}  // namespace

void Group::collective(const Operation& operation, const Batch& batch) {
  const auto n = static_cast<std::size_t>(size_);
  Call call;
  call.op = static_cast<Op>(operation.op);
  call.dtype = static_cast<std::uint8_t>(operation.dtype);
  call.reduction = static_cast<std::uint8_t>(operation.reduction);
  call.variant = operation.quantized ? 1 : 0;
  if (operation.op != Op::barrier) call.bytes = bytes_of(operation);
  if (operation.op == Op::reduce_scatter) call.bytes *= n;
  const bool rooted = operation.op == Op::broadcast || operation.op == Op::reduce || operation.op == Op::gather ||
                      operation.op == Op::scatter;
  if (rooted) call.root = operation.root;
  call.sequence = ++sequence_;
  track(Stream::collectives).waiter.begin(call, batch.start, batch.deadline);
  dispatch(call, operation);
}

void Group::dispatch(const Call& call, const Operation& operation) {
  const ReduceFunction reduce = find_reduction(operation.dtype, operation.reduction);
  const std::size_t bytes = bytes_of(operation);
  const std::byte* const in = input(operation);
  std::byte* const out = output(operation);
  const auto copy = [&](std::byte* to, std::size_t size) {
    if (to != in && in != nullptr && size != 0) std::memmove(to, in, size);
  };
  switch (operation.op) {
    case Op::all_reduce:
      copy(out, bytes);
      if (size_ == 1) return;
      if (local_) return local_->all_reduce(call, out, reduce);  // memory is not slow: nothing to gain by rounding
      return operation.quantized ? net_->all_reduce_quantized(call, out) : net_->all_reduce(call, out, reduce);
    case Op::all_gather: {
      std::byte* const mine = out + static_cast<std::size_t>(rank_) * bytes;
      copy(mine, bytes);
      if (size_ == 1) return;
      return local_ ? local_->all_gather(call, mine, out) : net_->all_gather(call, mine, out);
    }
    case Op::reduce_scatter:
      if (size_ == 1) return copy(out, bytes);
      return local_ ? local_->reduce_scatter(call, in, out, reduce) : net_->reduce_scatter(call, in, out, reduce);
    case Op::broadcast:
      // Up to that size it fits into the rings: then the root need not wait for the others.
      return local_ && bytes > kRingBytes ? local_->broadcast(call, out) : net_->broadcast(call, out);
    case Op::reduce:
      if (size_ == 1) return copy(out, bytes);
      return local_ ? local_->reduce(call, in, out, reduce) : net_->reduce(call, in, out, reduce);
    case Op::gather:
      return net_->gather(call, in, out);
    case Op::scatter:
      return net_->scatter(call, in, out);
    case Op::all_to_all: {
      const auto n = static_cast<std::size_t>(size_);
      std::vector<std::size_t> sends(n, operation.count);
      std::vector<std::size_t> receives(n, operation.count);
      if (operation.send_counts != nullptr) {
        sends.assign(operation.send_counts, operation.send_counts + n);
        receives.assign(operation.recv_counts, operation.recv_counts + n);
      }
      return net_->all_to_all(call, in, out, sends, receives);
    }
    case Op::barrier:
      if (size_ == 1) return;
      return local_ ? local_->barrier(call) : net_->barrier(call);
    default:
      return;  // valid() lets none of the others on this stream
  }
}

std::size_t Group::packable(const Operation* operations, std::size_t count) const {
  const auto alike = [&](const Operation& one) {
    return one.op == Op::all_reduce && one.dtype == operations->dtype && one.reduction == operations->reduction &&
           one.quantized == operations->quantized && bytes_of(one) <= kPackBytes;
  };
  if (count == 1) return 1;
  std::size_t n = 0;
  while (n < count && alike(operations[n])) ++n;
  return std::max<std::size_t>(n, 1);
}

void Group::packed(const Operation* operations, std::size_t count, const Batch& batch) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += bytes_of(operations[i]);
  pack_.resize(bytes);
  std::byte* at = pack_.data();
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const from = operations[i].in != nullptr ? input(operations[i]) : output(operations[i]);
    at = std::copy_n(from, bytes_of(operations[i]), at);
  }
  Operation whole = operations[0];
  whole.in = nullptr;
  whole.out = pack_.data();
  whole.count = bytes / size_of(whole.dtype);
  collective(whole, batch);
  const std::byte* from = pack_.data();
  for (std::size_t i = 0; i < count; ++i) {
    std::copy_n(from, bytes_of(operations[i]), output(operations[i]));
    from += bytes_of(operations[i]);
  }
}

}  // namespace ferrule
