// Relay buffer: bounded memory for one direction between two sockets, in a pipe of the kernel or in this process.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ferrule {

class RelayBuffer {
 public:
  enum class Flow { moved, blocked, ended };

  virtual ~RelayBuffer() = default;
  // Take what the socket has, as far as there is room; only when empty. ended: nothing more will come.
  virtual Flow fill(int from) = 0;
  // Give what is held to the socket, as far as it takes that; only when not empty. ended: it never will.
  virtual Flow drain(int to) = 0;
  virtual bool empty() const = 0;

  // The best that this system has.
  static std::unique_ptr<RelayBuffer> make();
};

// Copies through memory. Everywhere.
class CopyRelayBuffer final : public RelayBuffer {
 public:
  CopyRelayBuffer();
  Flow fill(int from) override;
  Flow drain(int to) override;
  bool empty() const override { return begin_ == end_; }

 private:
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

#ifdef __linux__
// Hands pages from one socket to the other through a pipe.
class SpliceRelayBuffer final : public RelayBuffer {
 public:
  SpliceRelayBuffer();
  ~SpliceRelayBuffer() override;
  SpliceRelayBuffer(const SpliceRelayBuffer&) = delete;
  SpliceRelayBuffer& operator=(const SpliceRelayBuffer&) = delete;
  Flow fill(int from) override;
  Flow drain(int to) override;
  bool empty() const override { return held_ == 0; }

 private:
  int pipe_[2];
  std::size_t held_ = 0;
};
#endif

}  // namespace ferrule
