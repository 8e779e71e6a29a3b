// One end of a queue pair while it is connected: opened, described to the peer, joined, tested by a frame each way.
#pragma once

#include <memory>
#include <string>

#include "transports/verbs/ibv_queue_pair.h"

namespace ferrule {

class VerbsEndpoint {
 public:
  // All throw std::runtime_error.
  explicit VerbsEndpoint(const VerbsOptions& options);
  const VerbsDescription& local() const { return local_; }
  void join(const VerbsDescription& theirs, Clock::time_point deadline);
  // Both ends are joined: a frame in each direction, waited for in the kernel.
  void prove(Clock::time_point deadline);

  std::unique_ptr<VerbsPipe> take_pipe() { return std::move(pipe_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::shared_ptr<VerbsConnector> connector_;
  VerbsDescription local_;
  ibv_qp* queue_pair_ = nullptr;  // the pipe's
  std::unique_ptr<VerbsPipe> pipe_;
};

}  // namespace ferrule
