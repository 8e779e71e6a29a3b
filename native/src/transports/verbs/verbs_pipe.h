// An ordered pipe of bytes over one queue pair, cut into frames that each fill (part of) a slot of registered memory.
//
// A byte that write() took is with the hardware: the peer gets it whether or not this process does anything more.
// So nothing is taken without a posted receive at the other end (see verbs_window.h). On a reliable queue pair
// frames arrive once and in order. On an unreliable one they may be lost: every frame stays in its slot until the peer
// has consumed it, a gap makes the sender go back, and a rank that has waited for long asks how far the other is.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "transports/verbs/queue_pair.h"
#include "transports/verbs/verbs_frame.h"
#include "transports/verbs/verbs_window.h"

namespace ferrule {

// Sizes into which a queue pair's memory is cut. Both ends may differ; the smaller counts.
struct PipeShape {
  std::uint32_t slots = 0;  // for data, in each direction
  std::uint32_t slot_bytes = 0;

  // Bytes of QueuePair::memory(), at least: all receive slots, the slots to send from, and small ones for other frames.
  std::size_t memory_bytes(std::size_t depth) const {
    return (2 * std::size_t{slots} + kControlSlots) * slot_bytes + depth * sizeof(VerbsFrameHeader);
  }
  std::uint32_t receives() const { return slots + kControlSlots; }
};

struct PipeEnd {
  PipeShape shape;
  std::uint32_t token = 0;
};

// The bytes that came make no sense, or some are missing where none can be.
struct FrameError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class VerbsPipe {
 public:
  // Posts all receives. The queue pair must take them already; it need not send yet.
  VerbsPipe(std::unique_ptr<QueuePair> queue, const PipeEnd& mine);
  // Before anything is sent.
  void meet(const PipeEnd& theirs);

  // All throw FrameError. Without room, or with nothing there, write and read return 0; they go on like that once
  // the queue pair is broken(), after read has given all that came before.
  std::size_t write(std::span<const ConstBytes> parts);
  std::size_t read(Bytes into);

  // Memory of devices, on a reliable pipe: frames whose payload the hardware reads there, and writes of it to where the
  // peer granted that, `offset` bytes behind that place. Both give how many bytes were taken, of `head` and of
  // `payload` together. The memory is read until holds_device_memory() is false.
  std::size_t write_with(ConstBytes head, const DeviceBytes& payload);
  std::size_t place(const DeviceBytes& payload, const Grant& grant, std::size_t offset);
  bool holds_device_memory();
  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory) { return queue_->register_memory(memory); }
  // Offer the peer a place: it goes out when there is room, which may be too late. And what the peer offered for that
  // message; offers for earlier ones are forgotten.
  void grant(const Grant& grant);
  std::optional<Grant> take_grant(std::uint64_t sequence);
  // Nothing that was granted is written any more; the pipe is broken then.
  void revoke() { queue_->stop(); }
  bool broken() const { return !queue_->fault().empty(); }
  const std::string& fault() const { return queue_->fault(); }

  // Handle what has arrived; false if nothing had.
  bool service();
  void greet() { tell(VerbsFrameKind::hello); }
  bool greeted() const { return greeted_; }
  // Have drained() tell, after some more service(), whether all that was sent so far has reached the peer's machine
  // (or, where that cannot be known, has left this one).
  void flush();
  bool drained() const { return queue_->drained(); }

  // Time that a caller which is about to sleep may do so. From then on event_fd() becomes readable when something
  // arrives; zero when something is there already. `waiting`: this rank wants something from the peer.
  Clock::duration prepare_sleep(bool waiting);
  int event_fd() const { return queue_->event_fd(); }
  void take_events();
  bool reliable() const { return queue_->reliable(); }

 private:
  struct Ready {
    std::uint32_t slot;
    std::uint32_t bytes;
  };

  std::byte* receive_slot(std::uint32_t slot) const {
    return memory_.data() + std::size_t{slot} * mine_.shape.slot_bytes;
  }
  std::byte* send_slot(std::uint32_t slot) const { return receive_slot(mine_.shape.receives() + slot); }
  void take(const Arrival& arrival);
  void heed(const VerbsFrameHeader& frame);
  void tell_gap();
  void recycle(std::uint32_t slot, bool data);
  void repost();
  void post(std::uint64_t frame);
  bool can_write() const { return !broken() && !out_.full() && !out_.behind() && queue_->has_room(); }
  // A new frame. Its payload is to be filled in, or sent from elsewhere; then comes its header, then post().
  struct Frame {
    std::uint64_t number;
    std::byte* slot;

    std::byte* payload() const { return slot + sizeof(VerbsFrameHeader); }
  };
  Frame claim();
  void head(const Frame& frame, std::size_t bytes, VerbsFrameKind kind);
  void require_reliable() const;
  void send_grants();
  void heed_grant(const Arrival& arrival);
  void tell(VerbsFrameKind kind);

  const std::unique_ptr<QueuePair> queue_;
  const Bytes memory_;
  const PipeEnd mine_;
  std::uint32_t peer_token_ = 0;
  std::size_t frame_bytes_ = 0;  // of payload
  std::uint32_t window_ = 0;     // frames
  SendWindow out_{0};
  ReceiveWindow in_{0};

  std::vector<Ready> ready_;  // a ring: what arrived and was not read to its end
  std::size_t ready_begin_ = 0;
  std::size_t ready_count_ = 0;
  std::size_t offset_ = 0;           // into the first of them
  std::vector<std::uint32_t> idle_;  // receive slots to post again
  std::uint32_t idle_data_ = 0;      // so many of them held data
  std::size_t next_control_ = 0;
  bool greeted_ = false;
  bool armed_ = false;
  bool state_wanted_ = false;

  // Memory of devices.
  std::uint64_t device_until_ = 0;  // sends up to that one read some
  std::deque<Grant> grants_to_send_;
  std::deque<Grant> grants_;  // of the peer

  // Unreliable queue pairs only.
  std::uint32_t gap_told_ = 0;      // the missing frame that the peer was told of, plus one
  std::uint64_t asked_at_ = 0;      // frames that were posted when we asked
  std::uint64_t was_asked_at_ = 0;  // and when we were asked
  bool heard_ = false;
  int asked_ = 0;
  Clock::time_point ask_next_{};
};

}  // namespace ferrule
