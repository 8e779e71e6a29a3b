#include "group/group.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

#include "collectives/local.h"
#include "transports/shm/shm_channel.h"

namespace ferrule {
namespace {

// Interval at which idle channels with rails are looked after: well within the time after which a rail is given up.
constexpr std::chrono::milliseconds kMaintenanceInterval{25};

bool can_quantize(const Operation& operation) {
  const bool floats = operation.dtype == Dtype::f32 || operation.dtype == Dtype::bf16 || operation.dtype == Dtype::f16;
  return floats && (operation.reduction == Reduction::sum || operation.reduction == Reduction::avg);
}

// Of sends and receives of a named peer, within its region.
bool valid_device(const Operation& operation) {
  const bool told = operation.op == Op::send || operation.placed != nullptr;
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  return told && operation.root != kAnyRank && operation.region->holds(operation.device, bytes);
}

std::vector<Channel*> pointers(const std::vector<std::unique_ptr<Channel>>& channels) {
  std::vector<Channel*> all;
  for (const auto& channel : channels) all.push_back(channel.get());
  return all;
}

int checked_size(const GroupOptions& options) {
  const std::size_t size = options.channels[0].size();
  const auto fits = [size](const std::vector<int>& list) { return list.empty() || list.size() == size; };
  const bool whole = options.channels[1].size() == size && fits(options.local_index) && fits(options.strategy.tree) &&
                     fits(options.strategy.ring) &&
                     (options.heartbeat == nullptr || options.heartbeat_ranks.size() == size);
  if (!whole) throw std::invalid_argument("every list has an entry per rank");
  if (options.rank < 0 || static_cast<std::size_t>(options.rank) >= size) {
    throw std::invalid_argument("a group needs a rank of its own");
  }
  const int places = options.segment == nullptr ? 0 : options.segment->ranks();
  if (std::ranges::any_of(options.local_index, [&](int place) { return options.segment && place >= places; })) {
    throw std::invalid_argument("the segment has room for " + std::to_string(places) + " ranks only");
  }
  return static_cast<int>(size);
}

}  // namespace

class Group::Entered {
 public:
  explicit Entered(Queue& queue) : queue_(queue) {}
  ~Entered() { queue_.leave(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  Queue& queue_;
};

Group::Track::Track(std::vector<std::unique_ptr<Channel>> all, const Waiter::Settings& settings,
                    std::atomic<std::uint32_t>* sleeping, LocalCollectives* const& local, std::function<void()> serve)
    : channels(pointers(all)),
      waiter(settings, channels, sleeping),
      exchange(waiter, channels.size(), local),
      queue(std::move(serve)) {
  std::erase(all, nullptr);
  owned = std::move(all);
}

Group::Group(GroupOptions options)
    : rank_(options.rank),
      size_(checked_size(options)),
      epoch_(options.epoch),
      segment_(std::move(options.segment)),
      heartbeat_(std::move(options.heartbeat)) {
  const auto local = [&](int rank) {
    return segment_ && !options.local_index.empty() ? options.local_index[static_cast<std::size_t>(rank)] : -1;
  };
  const int mine = local(rank_);
  const auto make = [&](Stream stream, std::function<void()> serve) {
    std::atomic<std::uint32_t>* const sleeping = mine >= 0 ? &segment_->sleeping(mine, stream) : nullptr;
    const auto index = static_cast<std::size_t>(stream);
    tracks_[index] = std::make_unique<Track>(std::move(options.channels[index]), options.wait, sleeping, local_view_,
                                             std::move(serve));
  };
  make(Stream::collectives, [this] { serve_collectives(); });
  make(Stream::messages, [this] { serve_messages(); });
  Track& collectives = track(Stream::collectives);
  const auto is_local = [&](int rank) { return local(rank) >= 0; };
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  if (size_ > 1 && std::ranges::all_of(ranks, is_local)) {
    local_ = std::make_unique<LocalCollectives>(*segment_, rank_, options.local_index, collectives.channels,
                                                collectives.waiter);
    local_view_ = local_.get();
  }
  net_ = std::make_unique<NetCollectives>(rank_, epoch_, collectives.channels, collectives.exchange, collectives.waiter,
                                          std::move(options.strategy));
  Track& messages = track(Stream::messages);
  queues_ = std::make_unique<MessageQueues>(epoch_, messages.channels, messages.waiter, messages.queue);
  // A message may be sent before its receive is called, a part of a collective is always awaited.
  for (const auto& channel : collectives.owned) channel->may_hold_memory();
  const auto has_rails = [](const auto& channel) { return !channel->rails().empty(); };
  const auto has_any_rails = [&](const auto& one) { return std::ranges::any_of(one->owned, has_rails); };
  if (std::ranges::any_of(tracks_, has_any_rails)) {
    maintenance_ = std::make_unique<MaintenanceThread>([this] { return maintain(); }, kMaintenanceInterval);
  }
  if (heartbeat_ == nullptr) return;
  seat_ = std::make_shared<Heartbeat::Seat>(epoch_, std::move(options.heartbeat_ranks),
                                            [this](const Failure& cause) { fail(cause); });
  heartbeat_->join(seat_);
}

Stream Group::stream_of(const Operation& operation) {
  return operation.op == Op::send || operation.op == Op::recv ? Stream::messages : Stream::collectives;
}

bool Group::valid(const Operation* operations, std::size_t count) const {
  for (const Operation* operation = operations; operation != operations + count; ++operation) {
    if (stream_of(*operation) != stream_of(*operations) || size_of(operation->dtype) == 0) return false;
    switch (operation->op) {
      case Op::send:
      case Op::recv:
        if (operation->region != nullptr && !valid_device(*operation)) return false;
        if (operation->op == Op::recv && operation->root == kAnyRank && size_ > 1) break;
        if (operation->root == rank_) return false;
        [[fallthrough]];
      case Op::broadcast:
      case Op::gather:
      case Op::scatter:
        if (operation->root < 0 || operation->root >= size_) return false;
        break;
      case Op::reduce:
        if (operation->root < 0 || operation->root >= size_) return false;
        [[fallthrough]];
      case Op::all_reduce:
      case Op::reduce_scatter:
        if (find_reduction(operation->dtype, operation->reduction) == nullptr) return false;
        if (operation->quantized && !can_quantize(*operation)) return false;
        break;
      case Op::all_to_all:
        if ((operation->send_counts == nullptr) != (operation->recv_counts == nullptr)) return false;
        break;
      case Op::all_gather:
      case Op::barrier:
        break;
      default:
        return false;
    }
  }
  return count != 0;
}

Status Group::run(const Operation* operations, std::size_t count, double timeout) {
  if (!valid(operations, count)) return Status::invalid;
  const Batch batch(operations, count, timeout);
  const Stream stream = stream_of(*operations);
  Queue& queue = track(stream).queue;
  while (!queue.pending()) {
    const Queue::Entry entry = queue.enter();
    if (entry == Queue::Entry::occupied) return ended_.load(std::memory_order_acquire) ? ended_status() : Status::busy;
    if (entry == Queue::Entry::pending) continue;  // which may have changed since
    const Entered entered(queue);
    return stream == Stream::collectives ? execute(batch) : execute_messages(batch);
  }
  std::shared_ptr<Work> work;
  const Status status = start(operations, count, timeout, work);
  return status == Status::ok ? work->wait(std::numeric_limits<double>::max()) : status;
}

Status Group::start(const Operation* operations, std::size_t count, double timeout, std::shared_ptr<Work>& work) {
  if (!valid(operations, count)) return Status::invalid;
  if (ended_.load(std::memory_order_acquire)) return ended_status();
  Job job(Batch(operations, count, timeout), static_cast<std::size_t>(size_));
  work = job.work = std::make_shared<Work>();
  Track& one = track(stream_of(*operations));
  one.queue.push(std::move(job));
  if (stream_of(*operations) == Stream::messages) one.waiter.wake();  // the thread that drives the queues takes it in
  return Status::ok;
}

template <class Body>
Status Group::guard(Stream stream, Body&& body) {
  if (ended_.load(std::memory_order_acquire)) return ended_status();
  try {
    body();
    return Status::ok;
  } catch (const Failure& cause) {
    if (cause.unexplained) await_notice();
    end(cause, track(stream).waiter.seconds(), static_cast<int>(stream));
  } catch (const std::bad_alloc&) {  // for scratch space
    end(Failure(Status::system, -1, "rank " + std::to_string(rank_) + " has no memory left for this operation"),
        track(stream).waiter.seconds(), static_cast<int>(stream));
  } catch (const std::exception& error) {
    end(Failure(Status::system, -1, error.what()), track(stream).waiter.seconds(), static_cast<int>(stream));
  }
  return ended_status();
}

Status Group::execute(const Batch& batch) {
  return guard(Stream::collectives, [&] {
    const Operation* operation = batch.operations;
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

Status Group::execute_messages(const Batch& batch) {
  const Status status = guard(Stream::messages, [&] {
    queues_->add(Job(batch, 0));
    const std::uint64_t ticket = queues_->tickets();
    queues_->run([&] { return queues_->done(ticket); });
  });
  if (status != Status::ok) queues_->fail(status);
  return status;
}

void Group::serve_collectives() {
  Queue& queue = track(Stream::collectives).queue;
  Job job;
  while (queue.pop(job)) {
    const Status status = execute(job.batch());
    job.work->finish(status);
    queue.ended();
  }
}

void Group::serve_messages() {
  Queue& queue = track(Stream::messages).queue;
  const Status status =
      guard(Stream::messages, [&] { queues_->run([&] { return queues_->empty() && !queue.has_next(); }); });
  if (status != Status::ok) queues_->fail(status);
}

}  // namespace ferrule
