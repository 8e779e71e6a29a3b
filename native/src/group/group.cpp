#include "group/group.h"

#include <algorithm>
#include <limits>

#include "collectives/local.h"
#include "transports/shm/shm_channel.h"

namespace ferrule {
namespace {

// How often idle channels with rails are looked after: well within the time after which a rail is given up.
constexpr std::chrono::milliseconds kMaintenanceInterval{25};

Clock::duration microseconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(value));
}

bool can_quantize(const ferrule_operation& operation) {
  const bool floats = operation.dtype == FERRULE_F32 || operation.dtype == FERRULE_BF16 || operation.dtype == FERRULE_F16;
  return floats && (operation.reduction == FERRULE_SUM || operation.reduction == FERRULE_AVG);
}

std::vector<Channel*> channels_of(ferrule_channel* const* channels, int size) {
  std::vector<Channel*> all(static_cast<std::size_t>(size), nullptr);
  for (std::size_t rank = 0; rank < all.size() && size > 1; ++rank) all[rank] = reinterpret_cast<Channel*>(channels[rank]);
  return all;
}

std::shared_ptr<Heartbeat> heartbeat_of(const ferrule_group_options& options) {
  return options.heartbeat == nullptr ? nullptr : *reinterpret_cast<std::shared_ptr<Heartbeat>*>(options.heartbeat);
}

}  // namespace

Group::Track::Track(std::vector<Channel*> all, const Waiter::Settings& settings, std::atomic<std::uint32_t>* sleeping,
                    LocalCollectives* const& local, std::function<void()> serve)
    : channels(std::move(all)),
      waiter(settings, channels, sleeping),
      exchange(waiter, channels.size(), local),
      queue(std::move(serve)) {}

Group::Group(const ferrule_group_options& options)
    : rank_(options.rank),
      size_(options.size),
      epoch_(options.epoch),
      segment_(reinterpret_cast<Segment*>(options.segment)),
      heartbeat_(heartbeat_of(options)) {
  const auto local = [&](int rank) { return segment_ && options.local_index ? options.local_index[rank] : -1; };
  const int mine = local(rank_);
  const Waiter::Settings settings{microseconds(options.spin_us), microseconds(options.yield_us), options.interrupted,
                                  options.interrupted_context};
  const auto make = [&](Stream stream, ferrule_channel* const* channels, std::function<void()> serve) {
    std::atomic<std::uint32_t>* const sleeping = mine >= 0 ? &segment_->sleeping(mine, stream) : nullptr;
    tracks_[static_cast<std::size_t>(stream)] = std::make_unique<Track>(
        channels_of(channels, size_), settings, sleeping, local_view_, std::move(serve));
  };
  make(Stream::collectives, options.collectives, [this] { serve_collectives(); });
  make(Stream::messages, options.messages, [this] { serve_messages(); });
  Track& collectives = track(Stream::collectives);
  const auto is_local = [&](int rank) { return local(rank) >= 0; };
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  if (size_ > 1 && std::ranges::all_of(ranks, is_local)) {
    const std::vector<int> indices(options.local_index, options.local_index + size_);
    local_ = std::make_unique<LocalCollectives>(*segment_, rank_, indices, collectives.channels, collectives.waiter);
    local_view_ = local_.get();
  }
  Strategy strategy;
  strategy.decisions.assign(options.decisions, options.decisions + options.decision_count);
  if (options.tree != nullptr) strategy.tree.assign(options.tree, options.tree + size_);
  if (options.ring != nullptr) strategy.ring.assign(options.ring, options.ring + size_);
  net_ = std::make_unique<NetCollectives>(rank_, epoch_, collectives.channels, collectives.exchange,
                                          collectives.waiter, std::move(strategy));
  Track& messages = track(Stream::messages);
  queues_ = std::make_unique<MessageQueues>(epoch_, messages.channels, messages.waiter, messages.queue);
  // Nothing can fail any more: the channels are ours from here on.
  for (const auto& one : tracks_) {
    for (Channel* channel : one->channels) {
      if (channel != nullptr) one->owned.emplace_back(channel);
    }
  }
  // A message may be sent before anybody asks for it, a part of a collective is always awaited.
  for (const auto& channel : collectives.owned) channel->may_hold_memory();
  const auto has_rails = [](const auto& channel) { return !channel->rails().empty(); };
  const auto has_any_rails = [&](const auto& one) { return std::ranges::any_of(one->owned, has_rails); };
  if (std::ranges::any_of(tracks_, has_any_rails)) maintenance_ = std::make_unique<MaintenanceThread>([this] { return maintain(); }, kMaintenanceInterval);
  if (heartbeat_ == nullptr) return;
  seat_ = std::make_shared<Heartbeat::Seat>(
      epoch_, std::vector<int>(options.heartbeat_ranks, options.heartbeat_ranks + size_),
      [this](const Failure& cause) { fail(cause); });
  heartbeat_->join(seat_);
}

Stream Group::stream_of(const ferrule_operation& operation) {
  return operation.op == FERRULE_SEND || operation.op == FERRULE_RECV ? Stream::messages : Stream::collectives;
}

bool Group::valid(const ferrule_operation* operations, std::size_t count) const {
  for (const ferrule_operation* operation = operations; operation != operations + count; ++operation) {
    if (stream_of(*operation) != stream_of(*operations) || ferrule_dtype_size(operation->dtype) == 0) return false;
    switch (operation->op) {
      case FERRULE_SEND:
      case FERRULE_RECV:
        if (operation->op == FERRULE_RECV && operation->root == FERRULE_ANY_RANK && size_ > 1) break;
        if (operation->root == rank_) return false;
        [[fallthrough]];
      case FERRULE_BROADCAST:
      case FERRULE_GATHER:
      case FERRULE_SCATTER:
        if (operation->root < 0 || operation->root >= size_) return false;
        break;
      case FERRULE_REDUCE:
        if (operation->root < 0 || operation->root >= size_) return false;
        [[fallthrough]];
      case FERRULE_ALL_REDUCE:
      case FERRULE_REDUCE_SCATTER:
        if (find_reduction(operation->dtype, operation->reduction) == nullptr) return false;
        if (operation->quantized && !can_quantize(*operation)) return false;
        break;
      case FERRULE_ALL_TO_ALL:
        if ((operation->send_counts == nullptr) != (operation->recv_counts == nullptr)) return false;
        break;
      case FERRULE_ALL_GATHER:
      case FERRULE_BARRIER:
        break;
      default:
        return false;
    }
  }
  return count != 0;
}

ferrule_status Group::run(const ferrule_operation* operations, std::size_t count, double timeout) {
  if (!valid(operations, count)) return FERRULE_INVALID;
  const Batch batch(operations, count, timeout);
  const Stream stream = stream_of(*operations);
  Queue& queue = track(stream).queue;
  // Once more after a look at what is pending: the stream's own thread may just have been given something.
  for (int attempt = 0; attempt < 2 && !queue.pending(); ++attempt) {
    if (!queue.try_enter()) continue;
    const ferrule_status status = stream == Stream::collectives ? execute(batch) : execute_messages(batch);
    queue.leave();
    return status;
  }
  if (!queue.pending()) return ended_.load(std::memory_order_acquire) ? failure().status : FERRULE_BUSY;
  std::shared_ptr<Work> work;
  const ferrule_status status = start(operations, count, timeout, work);
  return status == FERRULE_OK ? work->wait(std::numeric_limits<double>::max()) : status;
}

ferrule_status Group::start(const ferrule_operation* operations, std::size_t count, double timeout,
                            std::shared_ptr<Work>& work) {
  if (!valid(operations, count)) return FERRULE_INVALID;
  if (ended_.load(std::memory_order_acquire)) return failure().status;
  Job job(Batch(operations, count, timeout), static_cast<std::size_t>(size_));
  work = job.work = std::make_shared<Work>();
  Track& one = track(stream_of(*operations));
  one.queue.push(std::move(job));
  if (stream_of(*operations) == Stream::messages) one.waiter.wake();  // whoever drives the queues takes it in
  return FERRULE_OK;
}

template <class Body>
ferrule_status Group::guard(Stream stream, Body&& body) {
  if (ended_.load(std::memory_order_acquire)) return failure().status;
  try {
    body();
    return FERRULE_OK;
  } catch (const Failure& cause) {
    if (cause.unexplained) await_words();
    end(cause, track(stream).waiter.seconds(), static_cast<int>(stream));
  } catch (const std::exception& error) {  // no memory for scratch space
    end(Failure(FERRULE_SYSTEM, -1, error.what()), track(stream).waiter.seconds(), static_cast<int>(stream));
  }
  return failure().status;
}

ferrule_status Group::execute(const Batch& batch) {
  return guard(Stream::collectives, [&] {
    const ferrule_operation* operation = batch.operations;
    std::size_t left = batch.count;
    while (left != 0) {
      const std::size_t n = packable(operation, left);
      if (n > 1) {
        packed(operation, n, batch);
      } else {
        collective(*operation, batch);
      }
      operation += n;
      left -= n;
    }
  });
}

ferrule_status Group::execute_messages(const Batch& batch) {
  const ferrule_status status = guard(Stream::messages, [&] {
    queues_->add(Job(batch, 0));
    const std::uint64_t ticket = queues_->tickets();
    queues_->run([&] { return queues_->done(ticket); });
  });
  if (status != FERRULE_OK) queues_->fail(status);
  return status;
}

void Group::serve_collectives() {
  Queue& queue = track(Stream::collectives).queue;
  Job job;
  while (queue.pop(job)) {
    const ferrule_status status = execute(job.batch());
    job.work->finish(status);
    queue.ended();
  }
}

void Group::serve_messages() {
  Queue& queue = track(Stream::messages).queue;
  const ferrule_status status =
      guard(Stream::messages, [&] { queues_->run([&] { return queues_->empty() && !queue.has_next(); }); });
  if (status != FERRULE_OK) queues_->fail(status);
}

}  // namespace ferrule
