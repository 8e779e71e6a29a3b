// iWARP: queue pairs are joined by the connection manager (librdmacm, opened at run time), one end listening.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "transports/verbs/verbs_connector.h"
#include "transports/verbs/verbs_device.h"

namespace ferrule {
namespace {

struct ManagerLibrary {
  void* const handle;
  Symbol<rdma_event_channel*()> create_event_channel{handle, "rdma_create_event_channel"};
  Symbol<void(rdma_event_channel*)> destroy_event_channel{handle, "rdma_destroy_event_channel"};
  Symbol<int(rdma_event_channel*, rdma_cm_id**, void*, rdma_port_space)> create_id{handle, "rdma_create_id"};
  Symbol<int(rdma_cm_id*)> destroy_id{handle, "rdma_destroy_id"};
  Symbol<int(rdma_cm_id*, sockaddr*)> bind_addr{handle, "rdma_bind_addr"};
  Symbol<int(rdma_cm_id*, int)> listen{handle, "rdma_listen"};
  Symbol<std::uint16_t(rdma_cm_id*)> get_src_port{handle, "rdma_get_src_port"};
  Symbol<int(rdma_cm_id*, sockaddr*, sockaddr*, int)> resolve_addr{handle, "rdma_resolve_addr"};
  Symbol<int(rdma_cm_id*, int)> resolve_route{handle, "rdma_resolve_route"};
  Symbol<int(rdma_cm_id*, rdma_conn_param*)> connect{handle, "rdma_connect"};
  Symbol<int(rdma_cm_id*, rdma_conn_param*)> accept{handle, "rdma_accept"};
  Symbol<int(rdma_cm_id*, const void*, std::uint8_t)> reject{handle, "rdma_reject"};
  Symbol<int(rdma_cm_id*)> disconnect{handle, "rdma_disconnect"};
  Symbol<int(rdma_event_channel*, rdma_cm_event**)> get_cm_event{handle, "rdma_get_cm_event"};
  Symbol<int(rdma_cm_event*)> ack_cm_event{handle, "rdma_ack_cm_event"};
  Symbol<const char*(rdma_cm_event_type)> event_str{handle, "rdma_event_str"};

  static const ManagerLibrary& get() {
    static const ManagerLibrary library{open_library("librdmacm.so.1")};
    return library;
  }
};

union Address {
  sockaddr any;
  sockaddr_in four;
  sockaddr_in6 six;
};

Address parse(const std::string& text) {
  Address address{};
  if (::inet_pton(AF_INET, text.c_str(), &address.four.sin_addr) == 1) {
    address.any.sa_family = AF_INET;
  } else if (::inet_pton(AF_INET6, text.c_str(), &address.six.sin6_addr) == 1) {
    address.any.sa_family = AF_INET6;
  } else {
    throw std::runtime_error(text + " is no IP address");
  }
  return address;
}

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

void store(const Address& address, std::uint8_t (&gid)[16]) {
  if (address.any.sa_family == AF_INET6) {
    std::memcpy(gid, &address.six.sin6_addr, sizeof gid);
  } else {
    std::memcpy(gid, kMapped, sizeof kMapped);
    std::memcpy(gid + sizeof kMapped, &address.four.sin_addr, 4);
  }
}

Address load(const std::uint8_t (&gid)[16], std::uint16_t port) {
  Address address{};
  if (std::memcmp(gid, kMapped, sizeof kMapped) == 0) {
    address.four.sin_family = AF_INET;
    address.four.sin_port = htons(port);
    std::memcpy(&address.four.sin_addr, gid + sizeof kMapped, 4);
  } else {
    address.six.sin6_family = AF_INET6;
    address.six.sin6_port = htons(port);
    std::memcpy(&address.six.sin6_addr, gid, sizeof gid);
  }
  return address;
}

class ManagedConnector final : public VerbsConnector {
 public:
  explicit ManagedConnector(const VerbsOptions& options)
      : verbs_(VerbsLibrary::get()),
        library_(ManagerLibrary::get()),
        listens_(options.listens),
        port_(static_cast<std::uint8_t>(options.port)),
        address_(parse(options.address)) {
    try {
      open(options);
    } catch (...) {
      release();
      throw;
    }
  }
  ~ManagedConnector() override { release(); }

  ibv_context* context() const override { return bound_->verbs; }
  ibv_pd* domain() const override { return domain_; }

  ibv_qp* make(ibv_qp_init_attr& wanted) override { return make_queue_pair(domain_, port_, wanted); }

  void destroy(ibv_qp* queue_pair) override {
    // Unlike an end without it, this lets what is under way arrive.
    if (connection_ != nullptr && library_.disconnect(connection_) == 0) {
      const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);
      try {
        wait(RDMA_CM_EVENT_DISCONNECTED, deadline);
      } catch (const std::runtime_error&) {
        // The other end does not answer: then it ends without that.
      }
    }
    verbs_.destroy_qp(queue_pair);
  }

  void describe(const ibv_qp& queue_pair, VerbsDescription& mine) const override {
    mine.number = queue_pair.qp_num;
    store(address_, mine.gid);
    mine.port = listens_ ? ntohs(library_.get_src_port(bound_)) : 0;
  }

  void join(ibv_qp& queue_pair, const VerbsDescription& mine, const VerbsDescription& theirs,
            Clock::time_point deadline) override {
    rdma_conn_param how{};
    how.qp_num = queue_pair.qp_num;
    if (listens_) {
      connection_ = expect(mine.token, deadline);
      check(library_.accept(connection_, &how), "cannot accept");
    } else {
      Address peer = load(theirs.gid, theirs.port);
      check(library_.resolve_addr(bound_, nullptr, &peer.any, milliseconds(deadline)), "no address resolution");
      wait(RDMA_CM_EVENT_ADDR_RESOLVED, deadline);
      check(library_.resolve_route(bound_, milliseconds(deadline)), "no route");
      wait(RDMA_CM_EVENT_ROUTE_RESOLVED, deadline);
      how.private_data = &theirs.token;
      how.private_data_len = sizeof theirs.token;
      check(library_.connect(bound_, &how), "cannot connect");
      connection_ = bound_;
    }
    wait(RDMA_CM_EVENT_ESTABLISHED, deadline);
  }

  std::shared_ptr<DeviceRegion> register_memory(const DeviceMemory&) override {
    throw std::runtime_error("memory of devices is not registered with iWARP adapters");
  }

 private:
  void open(const VerbsOptions& options) {
    events_ = library_.create_event_channel();
    if (events_ == nullptr) throw_errno("no RDMA connection manager (is the module rdma_ucm loaded?)", errno);
    ::fcntl(events_->fd, F_SETFL, ::fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
    check(library_.create_id(events_, &bound_, nullptr, RDMA_PS_TCP), "no identifier");
    check(library_.bind_addr(bound_, &address_.any), "cannot bind");
    const char* const found = bound_->verbs == nullptr ? nullptr : verbs_.get_device_name(bound_->verbs->device);
    if (found == nullptr || found != options.device) {
      throw std::runtime_error("the address " + options.address + " does not lead to " + options.device);
    }
    domain_ = verbs_.alloc_pd(bound_->verbs);
    if (domain_ == nullptr) throw_errno("no protection domain", errno);
    if (listens_) check(library_.listen(bound_, 1), "cannot listen");
  }

  void release() {
    if (domain_ != nullptr) verbs_.dealloc_pd(domain_);
    if (connection_ != nullptr && connection_ != bound_) library_.destroy_id(connection_);
    if (bound_ != nullptr) library_.destroy_id(bound_);
    if (events_ != nullptr) library_.destroy_event_channel(events_);
  }

  static void check(int result, const char* what) {
    if (result != 0) throw_errno(std::string("the RDMA connection manager: ") + what, errno);
  }

  static int milliseconds(Clock::time_point deadline) {
    return std::max(poll_milliseconds(deadline - Clock::now()), 1);
  }

  rdma_cm_event* next(Clock::time_point deadline) {
    for (;;) {
      rdma_cm_event* event = nullptr;
      if (library_.get_cm_event(events_, &event) == 0) return event;
      if (errno != EAGAIN && errno != EINTR) throw_errno("the RDMA connection manager", errno);
      if (Clock::now() >= deadline)
        throw std::runtime_error("the RDMA connection manager: the other end does not answer");
      pollfd ready{events_->fd, POLLIN, 0};
      (void)::poll(&ready, 1, milliseconds(deadline));
    }
  }

  void wait(rdma_cm_event_type wanted, Clock::time_point deadline) {
    for (;;) {
      rdma_cm_event* const event = next(deadline);
      const rdma_cm_event_type type = event->event;
      const int status = event->status;
      rdma_cm_id* const whose = event->id;
      library_.ack_cm_event(event);
      if (type == wanted) return;
      if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        turn_away(whose);
        continue;
      }
      throw std::runtime_error(std::string("the RDMA connection manager: ") + library_.event_str(type) + " (" +
                               std::strerror(status < 0 ? -status : status) + ")");
    }
  }

  // A peer that connects must know the token.
  rdma_cm_id* expect(std::uint32_t token, Clock::time_point deadline) {
    for (;;) {
      rdma_cm_event* const event = next(deadline);
      rdma_cm_id* const visitor = event->id;
      const bool asks = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
      const rdma_conn_param& how = event->param.conn;
      const bool knows =
          asks && how.private_data_len >= sizeof token && std::memcmp(how.private_data, &token, sizeof token) == 0;
      library_.ack_cm_event(event);
      if (knows) return visitor;
      if (asks) turn_away(visitor);
    }
  }

  void turn_away(rdma_cm_id* stranger) {
    library_.reject(stranger, nullptr, 0);
    library_.destroy_id(stranger);
  }

  const VerbsLibrary& verbs_;
  const ManagerLibrary& library_;
  const bool listens_;
  const std::uint8_t port_;
  Address address_;
  rdma_event_channel* events_ = nullptr;
  rdma_cm_id* bound_ = nullptr;       // to this end's address
  rdma_cm_id* connection_ = nullptr;  // the same where this end connects
  ibv_pd* domain_ = nullptr;
};

}  // namespace

std::shared_ptr<VerbsConnector> make_managed_connector(const VerbsOptions& options) {
  return std::make_shared<ManagedConnector>(options);
}

}  // namespace ferrule
