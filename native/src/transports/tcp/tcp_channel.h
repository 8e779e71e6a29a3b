// A channel whose data go over its socket.
#pragma once

#include <sys/types.h>

#include <vector>

#include "transports/channel.h"
#include "transports/tcp/zero_copy.h"

namespace ferrule {

class TcpChannel final : public Channel {
 public:
  explicit TcpChannel(const Ends& ends);

  std::size_t try_send(std::span<const ConstBytes> parts) override;
  std::size_t try_recv(Bytes into) override;
  void add_polls(Wanted wanted, std::vector<pollfd>& into) const override;
  void on_poll(const pollfd& ready) override;
  bool holds_callers_memory() override;
  void may_hold_memory() override { zero_copy_.enable(); }
  const char* transport() const override { return "tcp"; }

 protected:
  void drain() override;

 private:
  ssize_t send_joined(std::span<const ConstBytes> parts);
  ssize_t send_parts(std::span<const ConstBytes> parts);
  std::size_t read_socket(Bytes into);
  std::size_t take_inbox(Bytes into);

  ZeroCopy zero_copy_;
  // Bytes read ahead: a header and a small payload cost one system call instead of two.
  std::vector<std::byte> inbox_;
  std::size_t inbox_begin_ = 0;
  std::size_t inbox_end_ = 0;
};

}  // namespace ferrule
