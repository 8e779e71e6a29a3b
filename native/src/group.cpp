#include "group.h"

#include <algorithm>
#include <cstring>

#include "collectives_local.h"
#include "shm_channel.h"
#include "tcp_channel.h"

namespace ferrule {
namespace {

Clock::duration microseconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(value));
}

Call make_call(Op op, std::size_t bytes, ferrule_dtype dtype, ferrule_reduction reduction = FERRULE_SUM) {
  Call call;
  call.op = op;
  call.dtype = static_cast<std::uint8_t>(dtype);
  call.reduction = static_cast<std::uint8_t>(reduction);
  call.bytes = bytes;
  return call;
}

}  // namespace

Group::Group(const ferrule_group_options& options)
    : rank_(options.rank),
      size_(options.size),
      epoch_(options.epoch),
      segment_(reinterpret_cast<Segment*>(options.segment)),
      channels_(static_cast<std::size_t>(size_), nullptr),
      sent_(static_cast<std::size_t>(size_)),
      received_(static_cast<std::size_t>(size_)) {
  const auto local = [&](int rank) { return segment_ && options.local_index ? options.local_index[rank] : -1; };
  const int mine = local(rank_);
  int on_segment = 0;
  for (int rank = 0; rank < size_; ++rank) {
    if (local(rank) >= 0) ++on_segment;
    if (rank == rank_) continue;
    const Ends ends{rank_, rank, options.fds[rank], epoch_};
    if (mine >= 0 && local(rank) >= 0) {
      owned_.push_back(
          std::make_unique<ShmChannel>(ends, *segment_, mine, local(rank)));
    } else {
      owned_.push_back(std::make_unique<TcpChannel>(ends));
    }
    channels_[static_cast<std::size_t>(rank)] = owned_.back().get();
  }
  const Waiter::Settings settings{microseconds(options.spin_us), microseconds(options.yield_us), options.interrupted,
                                  options.interrupted_context};
  waiter_ = std::make_unique<Waiter>(settings, channels_, mine >= 0 ? &segment_->rank(mine).sleeping : nullptr);
  if (size_ > 1 && on_segment == size_) {
    std::vector<int> indices(options.local_index, options.local_index + size_);
    local_ = std::make_unique<LocalCollectives>(*segment_, rank_, indices, channels_, *waiter_);
  }
  exchange_ = std::make_unique<Exchange>(*waiter_, static_cast<std::size_t>(size_), local_.get());
}

template <class Body>
ferrule_status Group::operate(Call& call, std::uint64_t& counter, double timeout, Body&& body) {
  if (busy_.exchange(true, std::memory_order_acquire)) return FERRULE_BUSY;
  ferrule_status status = FERRULE_OK;
  if (ended_.load(std::memory_order_acquire)) {
    status = failure().status;
  } else {
    call.sequence = ++counter;
    waiter_->begin(call, timeout);
    try {
      body();
    } catch (const Failure& cause) {
      end(cause, waiter_->seconds());
      status = failure().status;
    } catch (const std::exception& error) {  // no memory for scratch space
      end(Failure(FERRULE_SYSTEM, -1, error.what()), waiter_->seconds());
      status = failure().status;
    }
  }
  busy_.store(false, std::memory_order_release);
  return status;
}

ferrule_status Group::all_reduce(void* data, std::size_t count, ferrule_dtype dtype, ferrule_reduction reduction,
                                 double timeout) {
  const ReduceFunction reduce = find_reduction(dtype, reduction);
  if (reduce == nullptr) return FERRULE_INVALID;
  Call call = make_call(Op::all_reduce, count * ferrule_dtype_size(dtype), dtype, reduction);
  return operate(call, sequence_, timeout, [&] {
    if (size_ == 1) return;
    if (local_) return local_->all_reduce(call, static_cast<std::byte*>(data), reduce);
    exchange_all_reduce(call, static_cast<std::byte*>(data), reduce);
  });
}

ferrule_status Group::all_gather(const void* in, void* out, std::size_t count, ferrule_dtype dtype, double timeout) {
  const std::size_t bytes = count * ferrule_dtype_size(dtype);
  if (ferrule_dtype_size(dtype) == 0) return FERRULE_INVALID;
  Call call = make_call(Op::all_gather, bytes, dtype);
  return operate(call, sequence_, timeout, [&] {
    auto* const mine = static_cast<std::byte*>(out) + static_cast<std::size_t>(rank_) * bytes;
    if (mine != in && bytes != 0) std::memmove(mine, in, bytes);
    if (size_ == 1) return;
    if (local_) return local_->all_gather(call, mine, static_cast<std::byte*>(out));
    exchange_all_gather(call, mine, static_cast<std::byte*>(out));
  });
}

ferrule_status Group::reduce_scatter(const void* in, void* out, std::size_t count, ferrule_dtype dtype,
                                     ferrule_reduction reduction, double timeout) {
  const ReduceFunction reduce = find_reduction(dtype, reduction);
  if (reduce == nullptr) return FERRULE_INVALID;
  const std::size_t bytes = count * ferrule_dtype_size(dtype);
  Call call = make_call(Op::reduce_scatter, bytes * static_cast<std::size_t>(size_), dtype, reduction);
  return operate(call, sequence_, timeout, [&] {
    const auto* const from = static_cast<const std::byte*>(in);
    auto* const to = static_cast<std::byte*>(out);
    if (size_ == 1) {
      if (bytes != 0) std::memmove(to, from, bytes);
    } else if (local_) {
      local_->reduce_scatter(call, from, to, reduce);
    } else {
      std::vector<std::size_t> bounds;
      for (int rank = 0; rank <= size_; ++rank) bounds.push_back(static_cast<std::size_t>(rank) * bytes);
      exchange_pieces(call, from, to, nullptr, bounds, reduce);
    }
  });
}

ferrule_status Group::broadcast(void* data, std::size_t count, ferrule_dtype dtype, int root, double timeout) {
  if (root < 0 || root >= size_ || ferrule_dtype_size(dtype) == 0) return FERRULE_INVALID;
  Call call = make_call(Op::broadcast, count * ferrule_dtype_size(dtype), dtype);
  call.root = root;
  return operate(call, sequence_, timeout, [&] {
    const Bytes bytes(static_cast<std::byte*>(data), static_cast<std::size_t>(call.bytes));
    exchange_->clear();
    if (rank_ == root) {
      for (Channel* channel : channels_) {
        if (channel != nullptr) exchange_->to(channel, header(call)).first = bytes;
      }
    } else {
      exchange_->from(channels_[static_cast<std::size_t>(root)], header(call)).second = bytes;
    }
    exchange_->run();
  });
}

ferrule_status Group::send(const void* data, std::size_t count, ferrule_dtype dtype, int peer, double timeout) {
  if (!is_peer(peer) || ferrule_dtype_size(dtype) == 0) return FERRULE_INVALID;
  Call call = make_call(Op::send, count * ferrule_dtype_size(dtype), dtype);
  return operate(call, sent_[static_cast<std::size_t>(peer)], timeout, [&] {
    exchange_->clear();
    exchange_->to(channels_[static_cast<std::size_t>(peer)], header(call)).first = {
        static_cast<const std::byte*>(data), static_cast<std::size_t>(call.bytes)};
    exchange_->run();
  });
}

ferrule_status Group::recv(void* data, std::size_t count, ferrule_dtype dtype, int peer, double timeout) {
  if (!is_peer(peer) || ferrule_dtype_size(dtype) == 0) return FERRULE_INVALID;
  Call call = make_call(Op::send, count * ferrule_dtype_size(dtype), dtype);
  return operate(call, received_[static_cast<std::size_t>(peer)], timeout, [&] {
    exchange_->clear();
    exchange_->from(channels_[static_cast<std::size_t>(peer)], header(call)).second = {
        static_cast<std::byte*>(data), static_cast<std::size_t>(call.bytes)};
    exchange_->run();
  });
}

ferrule_status Group::barrier(double timeout) {
  Call call = make_call(Op::barrier, 0, FERRULE_U8);
  return operate(call, sequence_, timeout, [&] {
    if (size_ == 1) return;
    if (local_) return local_->barrier(call);
    exchange_empty(call);
  });
}

}  // namespace ferrule
