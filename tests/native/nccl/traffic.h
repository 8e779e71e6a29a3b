// Random groups of messages over several comms at once, as NCCL's proxy thread moves them, and checked byte by byte.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <random>

#include "nccl/pair.h"

namespace nccl_test {

struct Plan {
  unsigned seed = 1;
  int operations = 400;  // messages, over all ways
  int ways = 6;          // half of them each way
  std::size_t huge = 0;  // bytes of a few messages on the first way
  double deadline = 20;  // seconds in which each message is done or has failed
  bool may_fail = false;
  bool announce = false;  // when a tenth is done
};

struct Outcome {
  int done = 0;
  int failed = 0;
  double longest = 0;
};

// What both ranks know of a group without a word: it follows from the seed.
struct Group {
  std::vector<int> tags;
  std::vector<std::size_t> sent;
  std::vector<std::size_t> room;
  std::vector<std::size_t> order;  // in which they are sent

  Group(const Plan& plan, int way, int number) {
    std::seed_seq seed{plan.seed, static_cast<unsigned>(way), static_cast<unsigned>(number)};
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const bool huge = plan.huge != 0 && way == 0 && number % 97 == 5;
    const std::size_t count = huge || below(2) == 0 ? 1 : 1 + below(8);
    for (std::size_t i = 0; i < count; ++i) {
      constexpr std::size_t kMost[] = {1, 256, 4 << 10, 64 << 10, 320 << 10, 1 << 20, 2 << 20};
      const std::size_t size = huge ? plan.huge / 2 + below(plan.huge / 2 + 1) : below(kMost[below(std::size(kMost))]);
      sent.push_back(size);
      room.push_back(below(2) == 0 ? size : size + below(5000));
      tags.push_back(static_cast<int>(below(1000) * 8 + i));
    }
    order.resize(count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
  }
};

struct Buffer {
  std::unique_ptr<std::byte[]> data;
  std::size_t size;

  explicit Buffer(std::size_t bytes) : data(std::make_unique_for_overwrite<std::byte[]>(bytes + 1)), size(bytes) {}
  static std::uint64_t word(std::uint64_t key, std::size_t i) { return (key + i) * 0x9e3779b97f4a7c15; }
  void fill(std::uint64_t key) const {
    for (std::size_t at = 0; at < size; at += 8) {
      const std::uint64_t value = word(key, at);
      std::memcpy(data.get() + at, &value, std::min<std::size_t>(8, size - at));
    }
  }
  bool holds(std::uint64_t key, std::size_t bytes) const {
    for (std::size_t at = 0; at < bytes; at += 8) {
      const std::uint64_t value = word(key, at);
      if (std::memcmp(data.get() + at, &value, std::min<std::size_t>(8, bytes - at)) != 0) return false;
    }
    return true;
  }
};

inline std::uint64_t key_of(int way, int number, std::size_t slot) {
  return (static_cast<std::uint64_t>(way) << 40) ^ (static_cast<std::uint64_t>(number) << 8) ^ slot;
}

// One end of a way, with what is open on it.
class End {
 public:
  End(Net& net, const Plan& plan, Way& way, int rank, int number)
      : net_(net), plan_(plan), way_(way), sends_(way.sender == rank), number_(number), random_(plan.seed + 77) {
    const int share = plan.operations / plan.ways;
    for (int messages = 0; messages < share; ++groups_) {
      messages += static_cast<int>(Group(plan, number, groups_).tags.size());
      total_ = messages;
    }
  }

  // False: all is over.
  bool step() {
    if (over()) return false;
    const Result result = sends_ ? advance<true>() : advance<false>();
    if (result == kSuccess) return true;
    if (!plan_.may_fail) testing::fail(__FILE__, __LINE__, "a message failed: " + Log::warnings());
    CHECK(result == kRemoteError || result == kSystemError);
    outcome.failed = total_ - outcome.done;
    failed_ = true;
    return false;
  }

  Outcome outcome;
  bool failed() const { return failed_; }

 private:
  struct Open {
    int number;
    std::vector<Buffer> buffers;
    std::vector<void*> memory;
    std::vector<std::size_t> slots;  // of the group
    void* request = nullptr;
    TestClock::time_point since = TestClock::now();
  };

  bool over() const { return failed_ || (next_ == groups_ && open_.empty()); }

  template <bool sends>
  Result advance() {
    constexpr std::size_t kOpen = 8;  // requests, of a sender messages of so many groups
    if (next_ < groups_ && open_.size() < (sends ? 4 * kOpen : kOpen)) {
      const Result result = sends ? begin_send() : begin_receive();
      if (result != kSuccess) return result;
    }
    if (open_.empty()) return kSuccess;
    // Any of those that are open: NCCL asks for the oldest first, and may not have to.
    const std::size_t chosen = random_() % 4 == 0 ? random_() % open_.size() : 0;
    Open& one = open_[chosen];
    std::array<int, 8> sizes;
    sizes.fill(-1);
    int done = -1;
    const Result result = net_.test(one.request, &done, sizes.data());
    if (result != kSuccess) return result;
    CHECK(done == 0 || done == 1);
    const double took = std::chrono::duration<double>(TestClock::now() - one.since).count();
    if (took > plan_.deadline) testing::fail(__FILE__, __LINE__, "a message hangs: " + Log::warnings());
    if (done == 0) return kSuccess;
    outcome.longest = std::max(outcome.longest, took);
    finish(one, sizes);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(chosen));
    return kSuccess;
  }

  void* own(Open& one, std::size_t room) {
    one.buffers.emplace_back(room);
    void* memory = nullptr;
    CHECK(net_.register_memory(way_.comm, one.buffers.back().data.get(), room, kPointerHost, &memory) == kSuccess);
    one.memory.push_back(memory);
    return one.buffers.back().data.get();
  }

  void disown(Open& one) {
    for (void* const memory : one.memory) CHECK(net_.unregister(way_.comm, memory) == kSuccess);
  }

  Result begin_send() {
    const Group group(plan_, number_, next_);
    if (!pending_) {
      pending_ = std::make_unique<Open>();
      const std::size_t slot = group.order[at_];
      pending_->number = next_;
      pending_->slots = {slot};
      (void)own(*pending_, group.sent[slot]);
      pending_->buffers[0].fill(key_of(number_, next_, slot));
    }
    Open& one = *pending_;
    const std::size_t slot = one.slots[0];
    const Result result = net_.send(way_.comm, one.buffers[0].data.get(), group.sent[slot], group.tags[slot],
                                    one.memory[0], &one.request);
    if (result != kSuccess) return result;
    const double took = std::chrono::duration<double>(TestClock::now() - one.since).count();
    if (took > plan_.deadline) testing::fail(__FILE__, __LINE__, "a send is not taken: " + Log::warnings());
    if (one.request == nullptr) return kSuccess;  // later
    open_.push_back(std::move(one));
    pending_.reset();
    if (++at_ == group.tags.size()) {
      at_ = 0;
      ++next_;
    }
    return kSuccess;
  }

  Result begin_receive() {
    const Group group(plan_, number_, next_);
    Open one;
    one.number = next_;
    std::vector<void*> data;
    std::vector<std::size_t> room = group.room;
    std::vector<int> tags = group.tags;
    for (std::size_t slot = 0; slot < tags.size(); ++slot) {
      data.push_back(own(one, room[slot]));
      one.slots.push_back(slot);
    }
    one.request = reinterpret_cast<void*>(std::uintptr_t{1});  // what NCCL passes where it does not need to know
    const Result result = net_.receive(way_.comm, static_cast<int>(tags.size()), data.data(), room.data(), tags.data(),
                                       one.memory.data(), &one.request);
    if (result != kSuccess || one.request == nullptr) {
      disown(one);
      return result;
    }
    open_.push_back(std::move(one));
    ++next_;
    return kSuccess;
  }

  void finish(Open& one, std::array<int, 8>& sizes) {
    const Group group(plan_, number_, one.number);
    for (std::size_t i = 0; i < one.slots.size(); ++i) {
      const std::size_t slot = one.slots[i];
      CHECK(sizes[i] == static_cast<int>(group.sent[slot]));
      CHECK(one.buffers[i].holds(key_of(number_, one.number, slot), group.sent[slot]));
    }
    for (std::size_t i = one.slots.size(); i < sizes.size(); ++i) CHECK(sizes[i] == -1);
    if (!sends_) {
      void* flush = &sizes;
      void* data = one.buffers[0].data.get();
      CHECK(net_.flush(way_.comm, 1, &data, sizes.data(), one.memory.data(), &flush) == kSuccess);
      CHECK(flush == nullptr);
    }
    disown(one);
    outcome.done += static_cast<int>(one.slots.size());
  }

  Net& net_;
  const Plan& plan_;
  Way& way_;
  const bool sends_;
  const int number_;
  std::mt19937 random_;
  int groups_ = 0;
  int total_ = 0;  // messages
  int next_ = 0;   // group
  std::size_t at_ = 0;
  std::unique_ptr<Open> pending_;
  std::deque<Open> open_;
  bool failed_ = false;
};

inline Outcome run_traffic(Net& net, Meeting& meeting, int rank, const Plan& plan) {
  std::vector<Way> ways;
  for (int i = 0; i < plan.ways; ++i) ways.push_back({i % 2});
  for (Way& way : ways) join(net, meeting, rank, way);
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < plan.ways; ++i) {
    ends.push_back(std::make_unique<End>(net, plan, ways[static_cast<std::size_t>(i)], rank, i));
  }
  std::vector<bool> closed(ways.size());
  bool announced = !plan.announce;
  for (bool going = true; going;) {
    going = false;
    if (!announced) {
      int done = 0;
      for (const auto& end : ends) done += end->outcome.done;
      announced = done >= plan.operations / 10;
      if (announced) std::fprintf(stderr, "under way\n");
    }
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i]->step()) {
        going = true;
      } else if (ends[i]->failed() && !closed[i]) {
        closed[i] = true;  // as NCCL does at once, and the other end hears of it
        leave(net, rank, ways[i]);
      }
    }
  }
  meeting.barrier();
  Outcome all;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    all.done += ends[i]->outcome.done;
    all.failed += ends[i]->outcome.failed;
    all.longest = std::max(all.longest, ends[i]->outcome.longest);
    if (!closed[i]) leave(net, rank, ways[i]);
  }
  return all;
}

}  // namespace nccl_test
