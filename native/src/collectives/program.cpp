#include "collectives/program.h"

#include <algorithm>

namespace ferrule {
namespace {

// One in so many looks goes also to peers whose turn has not come: their header tells when they call something else.
constexpr unsigned kLookAhead = 8;

}  // namespace

void Program::clear(const MessageHeader& header) {
  header_ = header;
  for (Flows& flows : flows_) {
    for (Flow* flow : {&flows.out, &flows.in}) {
      flow->steps.clear();
      flow->at = flow->settled = flow->offset = flow->header = 0;
    }
  }
  tasks_.clear();
  afters_.clear();
  sources_.clear();
  combines_.clear();
  combined_ = 0;
  bytes_ = 0;
}

Program::Step Program::add(Task task, const Step* after, std::size_t count) {
  task.first_after = static_cast<std::uint32_t>(afters_.size());
  for (const Step* step = after; step != after + count; ++step) {
    if (*step != kNone) afters_.push_back(*step);
  }
  task.after_count = static_cast<std::uint32_t>(afters_.size()) - task.first_after;
  tasks_.push_back(task);
  return static_cast<Step>(tasks_.size() - 1);
}

Program::Step Program::send(int peer, ConstBytes from, std::initializer_list<Step> after) {
  Task task;
  task.source = from.data();
  task.bytes = from.size();
  bytes_ += from.size();
  const Step step = add(task, after.begin(), after.size());
  flows_[static_cast<std::size_t>(peer)].out.steps.push_back(step);
  return step;
}

Program::Step Program::receive(int peer, Bytes into, std::initializer_list<Step> after) {
  Task task;
  task.target = into.data();
  task.bytes = into.size();
  bytes_ += into.size();
  const Step step = add(task, after.begin(), after.size());
  flows_[static_cast<std::size_t>(peer)].in.steps.push_back(step);
  return step;
}

Program::Step Program::combine(ReduceFunction reduce, void* target, const std::vector<const void*>& sources,
                               std::size_t elements, int ranks, const std::vector<Step>& after) {
  Task task;
  task.target = static_cast<std::byte*>(target);
  task.bytes = elements;
  task.reduce = reduce;
  task.ranks = ranks;
  task.first_source = static_cast<std::uint32_t>(sources_.size());
  task.source_count = static_cast<std::uint32_t>(sources.size());
  sources_.insert(sources_.end(), sources.begin(), sources.end());
  const Step step = add(task, after.data(), after.size());
  combines_.push_back(step);
  return step;
}

bool Program::ready(Step step) const {
  const Task& task = tasks_[step];
  for (std::uint32_t i = 0; i < task.after_count; ++i) {
    if (!tasks_[afters_[task.first_after + i]].done) return false;
  }
  return true;
}

bool Program::settle(Flow& flow, bool held) {
  if (held || flow.settled == flow.at) return false;
  for (; flow.settled < flow.at; ++flow.settled) tasks_[flow.steps[flow.settled]].done = true;
  return true;
}

bool Program::pump_out(Channel& channel, Flow& flow) {
  bool moved = false;
  while (!flow.done() && ready(flow.steps[flow.at])) {
    const Task& task = tasks_[flow.steps[flow.at]];
    const ConstBytes head =
        ConstBytes(reinterpret_cast<const std::byte*>(&header_), sizeof header_).subspan(flow.header);
    const ConstBytes rest = ConstBytes(task.source, task.bytes).subspan(flow.offset);
    const ConstBytes parts[] = {head, rest};
    const std::size_t wanted = head.size() + rest.size();
    const std::size_t sent = wanted == 0 ? 0 : channel.try_send(parts);
    const std::size_t of_header = std::min(sent, head.size());
    flow.header += of_header;
    flow.offset += sent - of_header;
    if (sent != 0) moved = true;
    if (sent == wanted) {
      ++flow.at;
      flow.offset = 0;
      moved = true;
    }
    channel.mid_message = !flow.done();
    if (sent != wanted) break;
  }
  if (flow.settled < flow.at && settle(flow, channel.holds_callers_memory())) moved = true;
  return moved;
}

bool Program::pump_in(Channel& channel, Flow& flow, bool early) {
  bool moved = false;
  while (!flow.done()) {
    if (!early && !ready(flow.steps[flow.at])) break;
    if (flow.header < sizeof header_) {
      const std::size_t got =
          channel.try_recv(Bytes(reinterpret_cast<std::byte*>(&flow.received), sizeof header_).subspan(flow.header));
      if (got == 0) break;
      moved = true;
      flow.header += got;
      if (flow.header < sizeof header_) break;
      check_header(channel, header_, flow.received);
    }
    const Task& task = tasks_[flow.steps[flow.at]];
    if (!ready(flow.steps[flow.at])) break;
    if (flow.offset < task.bytes) {
      const std::size_t got = channel.try_recv(Bytes(task.target, task.bytes).subspan(flow.offset));
      if (got == 0) break;
      moved = true;
      flow.offset += got;
      if (flow.offset < task.bytes) break;  // the other peers have their turn
    }
    ++flow.at;
    flow.offset = 0;
    settle(flow, false);
    moved = true;
  }
  return moved;
}

bool Program::pump_combines() {
  bool moved = false;
  while (combined_ < combines_.size() && ready(combines_[combined_])) {
    Task& task = tasks_[combines_[combined_++]];
    if (task.bytes != 0) {
      task.reduce(task.target, sources_.data() + task.first_source, static_cast<int>(task.source_count), task.bytes,
                  task.ranks);
    }
    task.done = true;
    moved = true;
  }
  return moved;
}

bool Program::finished() const {
  if (combined_ != combines_.size()) return false;
  return std::ranges::all_of(flows_, [](const Flows& flows) { return flows.out.all_settled() && flows.in.done(); });
}

void Program::run(Waiter& waiter) {
  const Haste haste = bytes_ < kBulkBytes ? Haste::latency : Haste::bulk;
  unsigned looks = 0;
  waiter.until(
      [&] {
        bool moved = pump_combines();
        const bool early = ++looks % kLookAhead == 0;
        for (std::size_t rank = 0; rank < flows_.size(); ++rank) {
          if (channels_[rank] == nullptr) continue;
          if (pump_out(*channels_[rank], flows_[rank].out)) moved = true;
          if (pump_in(*channels_[rank], flows_[rank].in, early)) moved = true;
        }
        if (finished()) return Progress::done;
        return moved ? Progress::moved : Progress::idle;
      },
      [&](int rank) {
        const Flows& flows = flows_[static_cast<std::size_t>(rank)];
        const auto waits = [&](const Flow& flow) { return !flow.done() && ready(flow.steps[flow.at]); };
        const bool header = flows.in.open() && flows.in.header < sizeof header_;
        return Wanted{waits(flows.in) || header, waits(flows.out) || flows.out.settled < flows.out.at};
      },
      haste);
}

}  // namespace ferrule
