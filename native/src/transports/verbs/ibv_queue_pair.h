// A queue pair as libibverbs gives it, with its completion queue and its registered memory.
#pragma once

#include <memory>

#include "transports/verbs/queue_pair.h"
#include "transports/verbs/verbs_connector.h"
#include "transports/verbs/verbs_device.h"
#include "transports/verbs/verbs_pipe.h"

namespace ferrule {

class IbvQueuePair final : public QueuePair {
 public:
  // `shape` is what would be good; shape() what the device has. Throws std::runtime_error.
  IbvQueuePair(std::shared_ptr<VerbsConnector> connector, const std::string& device, ibv_qp_type type, PipeShape shape);
  ~IbvQueuePair() override;

  const PipeShape& shape() const { return shape_; }
  ibv_qp* handle() const { return queue_pair_; }

  Bytes memory() override { return {memory_, memory_bytes_}; }
  bool has_room() const override { return posted_ - completed_ < depth_; }
  void send(ConstBytes frame) override;
  void send_with(ConstBytes frame, const DeviceBytes& payload) override;
  void write(const DeviceBytes& payload, std::uint64_t remote_address, std::uint32_t remote_key) override;
  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory) override;
  void stop() override;
  void receive(std::span<const std::uint32_t> slots) override;
  std::size_t poll(std::span<Arrival> into) override;
  std::size_t depth() const override { return depth_; }
  std::uint64_t sent() const override { return posted_; }
  std::uint64_t completed() const override { return completed_; }
  void report() override { report_ = true; }
  bool reliable() const override { return reliable_; }
  const std::string& fault() const override { return fault_; }
  int event_fd() const override { return events_->fd; }
  void arm() override;
  void take_events() override;

 private:
  void make_queues(ibv_qp_type type);
  bool try_make(ibv_qp_type type, std::uint32_t slots, std::uint32_t inline_bytes);
  void make_memory();
  void release();
  ibv_sge place_of(ConstBytes frame) const;
  void post(ibv_send_wr& request);
  void fail(const std::string& why);

  const VerbsLibrary& library_;
  const std::shared_ptr<VerbsConnector> connector_;
  const bool reliable_;
  bool gathers_ = false;  // sends take memory of a device behind a frame
  std::unique_ptr<VerbsClaim> claim_;
  PipeShape shape_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::byte* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;

  std::uint64_t depth_ = 0;
  std::uint64_t interval_ = 0;  // every so manieth send is reported
  std::uint32_t inline_bytes_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  bool report_ = false;
  std::string fault_;
};

}  // namespace ferrule
