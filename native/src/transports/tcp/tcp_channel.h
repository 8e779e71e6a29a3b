// A channel over one or several TCP sockets (rails), which survives the loss of any.
//
// Small messages take one rail, large ones all at once. What was sent is kept until the peer has it, so that a rail
// may end at any time: what it carried is sent again over the others, or over a fresh socket that takes its place.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transports/channel.h"
#include "transports/tcp/rail.h"
#include "transports/tcp/rail_inbound.h"
#include "transports/tcp/rail_outbound.h"

namespace ferrule {

// On a rail something lost is sent again by TCP within a fraction of this.
constexpr std::chrono::milliseconds kStall{400};

class TcpChannel final : public Channel {
 public:
  // `fds`: a socket per rail, or -1 for one that is not there yet. `best`: the rail for small messages. A rail is
  // given up when nothing of what is on its wire arrived for `stall` while others work; not when the peer just does not
  // read.
  explicit TcpChannel(const Ends& ends, std::span<const int> fds, int best = 0, Clock::duration stall = kStall);
  ~TcpChannel() override;

  std::size_t try_send(std::span<const ConstBytes> parts) override;
  std::size_t try_recv(Bytes into) override;
  bool holds_callers_memory() override;
  std::uint64_t held_bytes() override;
  void may_hold_memory() override;
  void add_polls(Wanted wanted, std::vector<pollfd>& into) const override;
  void on_poll(const pollfd& ready) override;
  Clock::duration patience() const override;
  void maintain() override;
  const char* transport() const override { return "tcp"; }
  void send_close_notice(const CloseNotice& notice) override;
  void shut_down() override;

  // From any thread.
  bool add_rail(int rail, int fd) override;
  std::vector<RailState> rails() const override;

 protected:
  void drain() override;

 private:
  using Parts = std::array<ConstBytes, 4>;

  // Out.
  std::size_t send_some(Parts& parts, std::size_t total);
  OutFrame* next_frame(Parts& parts, std::size_t left, std::size_t piece, bool refer);
  void give(Rail& rail, OutFrame& frame);
  void push();
  Rail* pick();
  Rail* pick_next();
  bool usable(const Rail& rail) const;
  bool backlog() const;
  bool holds_memory();
  FrameHeader header(FrameKind kind);
  bool owes_acknowledgement() const;
  void acknowledge();

  // In.
  void read_all(bool all);
  void read(Rail& rail, bool all);
  FrameBounds bounds() const;
  bool read_inbox(Rail& rail, bool all);
  void take_header(const FrameHeader& head);
  void end_frame(Rail& rail);
  void look_for_end();

  // The rails themselves.
  void adopt();
  void step(Rail& rail, Rail::Io io);
  void bury(Rail& rail, bool reset);
  void lose(Rail& rail, int error, bool reset);
  void watch(Clock::time_point now);
  void linger();
  void end_if_reset(Clock::time_point now);

  const Clock::duration stall_;
  const std::size_t best_;
  std::vector<std::unique_ptr<Rail>> rails_;
  Outbound outbound_;
  Inbound inbound_;
  std::uint64_t limit_ = kRailWindowBytes;  // of the stream, until the peer has taken more
  std::size_t turn_ = 0;                    // the rail whose turn it is
  std::size_t expected_;                    // the rail that brought the last bytes
  std::size_t last_length_ = 0;             // of the last data frame
  unsigned idle_ = 0;

  // Positions that the peer was last told, and those that it waits to be told.
  std::uint64_t told_received_ = 0;
  std::uint64_t told_taken_ = 0;
  std::uint64_t ask_at_ = 0;
  bool must_tell_ = false;

  CloseNotice notice_;  // our last
  // The peer's close notice, and how many bytes it sent before.
  struct PeerLast {
    CloseNotice notice;
    std::uint64_t offset;
  };
  std::optional<PeerLast> peer_last_;

  bool watched_ = false;  // something was written since all wires were last seen empty
  Clock::time_point watched_at_{};
  bool doubts_ = false;  // a rail is suspect

  // Time and error of the last rail's reset, which may be the peer's end.
  struct Reset {
    int error;
    Clock::time_point at;
  };
  std::optional<Reset> reset_;

  struct Arrival {
    int rail;
    int fd;
  };
  mutable std::mutex mutex_;  // guards the arrivals, and the descriptors of rails_ against other threads
  std::vector<Arrival> arrivals_;
  bool shut_ = false;
  std::atomic<bool> arrived_{false};
};

}  // namespace ferrule
