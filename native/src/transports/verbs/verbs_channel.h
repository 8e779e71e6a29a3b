// A channel whose data go through a queue pair. Its socket tells of the peer's death and carries its close notice.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "transports/channel.h"
#include "transports/verbs/verbs_pipe.h"

namespace ferrule {

class VerbsChannel final : public Channel {
 public:
  // `path`: the device and what it reaches, for the message of a failure.
  VerbsChannel(const Ends& ends, std::unique_ptr<VerbsPipe> pipe, std::string path);
  ~VerbsChannel() override;

  std::size_t try_send(std::span<const ConstBytes> parts) override;
  std::size_t try_recv(Bytes into) override;
  bool holds_callers_memory() override;
  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory& memory) override {
    return pipe_->register_memory(memory);
  }
  std::size_t try_send_device(ConstBytes head, const DeviceBytes& payload) override;
  void grant(const Grant& offer) override;
  std::optional<Grant> take_grant(std::uint64_t sequence) override;
  std::size_t try_place(const DeviceBytes& payload, const Grant& offer, std::size_t offset) override;
  void revoke() override { pipe_->revoke(); }
  void add_polls(Wanted wanted, std::vector<pollfd>& into) const override;
  void on_poll(const pollfd& ready) override;
  Clock::duration patience() const override;
  const char* transport() const override { return "verbs"; }
  void send_close_notice(const CloseNotice& notice) override;
  void shut_down() override;

 protected:
  void drain() override { drain_notices(); }

 private:
  template <class Step>
  auto guarded(Step&& step) const;
  // What `step` takes or gives; throws where that is nothing because the pipe is broken.
  template <class Step>
  std::size_t moved(Step&& step);
  void linger();
  [[noreturn]] void broken();

  const std::unique_ptr<VerbsPipe> pipe_;
  const std::string path_;
  mutable Clock::duration patience_ = Clock::duration::max();
  std::atomic<bool> cut_{false};
};

}  // namespace ferrule
