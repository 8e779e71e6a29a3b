// A rail: one socket of a byte stream, with the frames that it sends and reads, and a stall detector.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transports/message.h"
#include "transports/tcp/rail_frame.h"
#include "transports/tcp/rail_outbound.h"
#include "transports/tcp/zero_copy.h"

namespace ferrule {

class Rail {
 public:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;
  enum class State {
    absent,    // without a socket: there is none yet, or its end was seen
    given_up,  // without a socket: it was closed because it did not work
    well,
    suspect,  // it stalled; what it carried goes over other rails as well
    blamed,   // and another rail moves meanwhile
  };
  enum class Io {
    done,
    blocked,  // the rest has to wait for the socket
    ended,    // error() tells why; 0: the peer closed it
  };

  // `alone`: the stream has no other rail.
  Rail(int number, bool alone) : number_(number), alone_(alone) {}
  ~Rail() { close(false); }
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  void open(int fd);
  // With a reset the peer learns of it as soon as anything reaches it, and the kernel sends nothing any more.
  void close(bool reset);
  int number() const { return number_; }
  bool alive() const { return fd_ >= 0; }
  State state() const { return state_.load(std::memory_order_relaxed); }  // from any thread
  bool doubtful() const { return state() == State::suspect || state() == State::blamed; }
  int fd() const { return fd_; }
  int error() const { return error_; }

  // Frames go out one by one: not while this one is busy with the rest of the last. The payload must stay.
  bool busy() const { return busy_; }
  const OutFrame* frame() const { return busy_ ? frame_ : nullptr; }
  Io write(const FrameHeader& header, ConstBytes payload, const OutFrame* frame);
  Io flush();
  // The peer has that frame by another rail and will not look at the rest of it, whose memory may now change.
  void disown();
  // Long frames in the caller's memory may be sent without a copy, on this socket and those that follow it.
  void may_hold_memory();
  // The kernel still reads frames from the caller's memory. Asking takes in what it has said.
  bool holds_memory();
  // It has something to say about such frames, which poll() calls an error.
  bool awaits_word() const { return zero_copy_ && zero_copy_->outstanding(); }

  // Read payload to `direct`, and what follows to the inbox, at most `ahead` bytes: done when the socket had all that.
  Io read(Bytes direct, std::size_t ahead, std::size_t& got);
  static constexpr std::size_t kInboxBytes = 64 << 10;
  ConstBytes unread;  // the rest of the inbox
  FrameReader reader;
  CloseNotice notice;  // the payload of a close notice that is being read

  // The reader stopped before bytes that no operation waits for yet.
  bool parked = false;
  Clock::time_point parked_since{};

  // Look at what the wire does; what happened since the last look counts as happening now.
  void look(Clock::time_point now);
  // Something was not at the peer's kernel then.
  bool waits() const { return waits_; }
  // For at least `limit` the peer's kernel answered nothing of what was sent, and none arrived.
  bool stalled(Clock::duration limit) const { return unanswered_ && looked_at_ - still_since_ >= limit; }
  Clock::time_point moved_at() const { return moved_at_; }  // the last bytes, either way
  void set_well() { become(State::well); }
  void suspect(Clock::time_point now);
  void blame(Clock::time_point now);
  Clock::time_point suspect_since() const { return suspect_since_; }
  Clock::time_point blamed_since() const { return blamed_since_; }
  // Whether the peer's kernel has everything, as far as can be told.
  bool delivered() const;

  // For any thread.
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint32_t> deaths{0};

 private:
  struct Queued {
    std::uint64_t bytes = 0;  // not acknowledged by the peer's kernel
    bool unanswered = false;  // some of these are on the wire, or a probe of the peer's window is
  };
  Queued queued() const;
  int probes() const;  // of the peer's window, sent in a row without an answer
  ssize_t send_some();
  ssize_t send_payload(ConstBytes rest);
  int zero_copy_flag() const;  // for the frame that is being written

  const int number_;
  const bool alone_;
  void become(State state) { state_.store(state, std::memory_order_relaxed); }
  std::atomic<State> state_ = State::absent;
  Clock::time_point suspect_since_{};
  Clock::time_point blamed_since_{};
  int fd_ = -1;
  int error_ = 0;
  int write_error_ = 0;
  bool tcp_ = false;
  std::vector<std::byte> inbox_;

  bool busy_ = false;
  FrameHeader header_;
  ConstBytes payload_;
  const OutFrame* frame_ = nullptr;
  std::size_t written_ = 0;  // of header and payload
  bool may_hold_memory_ = false;
  std::optional<ZeroCopy> zero_copy_;

  std::uint64_t total_written_ = 0;
  std::uint64_t arrived_ = 0;  // at the peer's kernel
  std::uint64_t total_read_ = 0;
  std::uint64_t read_before_ = 0;
  bool unanswered_ = false;
  bool waits_ = false;
  Clock::time_point looked_at_{};
  Clock::time_point still_since_{};
  Clock::time_point moved_at_{};
};

}  // namespace ferrule
