// Bounded room between two sockets: bytes go in from one and come out to the other.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ferrule {

class Conduit {
 public:
  enum class Flow { moved, blocked, ended };

  virtual ~Conduit() = default;
  // Take what the socket has, as far as there is room; only when empty. ended: nothing more will come.
  virtual Flow fill(int from) = 0;
  // Give what is held to the socket, as far as it takes that; only when not empty. ended: it never will.
  virtual Flow drain(int to) = 0;
  virtual bool empty() const = 0;

  // The best that this system has.
  static std::unique_ptr<Conduit> make();
};

// Copies through memory. Everywhere.
class BufferConduit final : public Conduit {
 public:
  BufferConduit();
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
class SpliceConduit final : public Conduit {
 public:
  SpliceConduit();
  ~SpliceConduit() override;
  SpliceConduit(const SpliceConduit&) = delete;
  SpliceConduit& operator=(const SpliceConduit&) = delete;
  Flow fill(int from) override;
  Flow drain(int to) override;
  bool empty() const override { return held_ == 0; }

 private:
  int pipe_[2];
  std::size_t held_ = 0;
};
#endif

}  // namespace ferrule
