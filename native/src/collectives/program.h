// A rank's part of a collective of several steps, as a list of steps with dependencies, and the loop that runs it.
//
// An algorithm writes its steps down: which bytes to send to whom, to receive from whom, to combine, and which steps
// must be done before. Steps of one peer and direction are done in the order in which they were written, which must
// be the order at the other end too; reductions are done in their order; otherwise whatever can go on goes on.
#pragma once

#include <initializer_list>
#include <vector>

#include "collectives/exchange.h"
#include "reduce/reduce.h"

namespace ferrule {

class Program {
 public:
  using Step = std::uint32_t;
  static constexpr Step kNone = ~Step{0};  // as a dependency: nothing to wait for

  explicit Program(const std::vector<Channel*>& channels) : channels_(channels), flows_(channels.size()) {}

  // Start afresh. Messages of this collective carry `header`.
  void clear(const MessageHeader& header);
  Step send(int peer, ConstBytes from, std::initializer_list<Step> after = {});
  Step receive(int peer, Bytes into, std::initializer_list<Step> after = {});
  // target = sources combined in their order. `after` are the steps that bring the sources or free the target.
  Step combine(ReduceFunction reduce, void* target, const std::vector<const void*>& sources, std::size_t elements,
               int ranks, const std::vector<Step>& after);

  void run(Waiter& waiter);

 private:
  struct Task {
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    std::size_t bytes = 0;
    ReduceFunction reduce = nullptr;
    int ranks = 0;
    std::uint32_t first_source = 0;
    std::uint32_t source_count = 0;
    std::uint32_t first_after = 0;
    std::uint32_t after_count = 0;
    bool done = false;
  };
  // One direction of one peer: the header, then its steps.
  struct Flow {
    std::vector<Step> steps;
    std::size_t at = 0;       // steps whose bytes have all moved
    std::size_t settled = 0;  // steps that are done: those whose memory may also be written again
    std::size_t offset = 0;   // bytes moved of the next one
    std::size_t header = 0;   // bytes of the header done
    MessageHeader received;

    bool open() const { return !steps.empty(); }
    bool done() const { return at == steps.size(); }
    bool all_settled() const { return settled == steps.size(); }
  };
  struct Flows {
    Flow out;
    Flow in;
  };

  Step add(Task task, const Step* after, std::size_t count);
  bool ready(Step step) const;
  bool pump_out(Channel& channel, Flow& flow);
  // `early`: read the header even if the first step may not begin yet.
  bool pump_in(Channel& channel, Flow& flow, bool early);
  bool pump_combines();
  bool finished() const;
  bool settle(Flow& flow, bool held);

  const std::vector<Channel*> channels_;
  std::vector<Flows> flows_;  // by rank
  MessageHeader header_;
  std::vector<Task> tasks_;
  std::vector<Step> afters_;
  std::vector<const void*> sources_;
  std::vector<Step> combines_;
  std::size_t combined_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace ferrule
