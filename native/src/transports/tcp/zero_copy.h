// Sends that leave the bytes where they are: the network adapter reads them from the caller's memory.
//
// Linux only (MSG_ZEROCOPY). The kernel says afterwards, in the socket's error queue, when it no longer needs the
// memory, and whether it copied all the same: over loopback, veth, and adapters that cannot gather it always does. Then
// this is only dearer, and no more of it is asked for on that socket.
#pragma once

#include <cstddef>
#include <cstdint>

struct msghdr;

namespace ferrule {

class ZeroCopy {
 public:
  // Below this size a copy is cheaper than pinning pages and waiting for the kernel's word. That comes when the peer's
  // kernel has the bytes.
  static constexpr std::size_t kLeastBytes = 64 << 10;

  explicit ZeroCopy(int fd) : fd_(fd) {}
  // From now on ask for it, if this socket has it.
  void enable();

  // The flag for sending so many bytes, or 0.
  int flag(std::size_t bytes) const { return enabled_ && bytes >= kLeastBytes ? kFlag : 0; }
  // A send with that flag took bytes.
  void sent() { ++sent_; }
  // A send with that flag failed, because too much memory is pinned: copy from now on.
  void refused() { enabled_ = false; }
  bool outstanding() const { return done_ != sent_; }
  // Read what the kernel has to say.
  void reap();
  bool enabled() const { return enabled_; }

 private:
  static const int kFlag;
  void take(const msghdr& message);

  const int fd_;
  bool enabled_ = false;
  std::uint32_t sent_ = 0;  // the kernel counts them in 32 bits, too
  std::uint32_t done_ = 0;
};

}  // namespace ferrule
