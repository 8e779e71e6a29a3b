// The RDMA part of the C ABI.
#include <memory>

#include "capi/guarded.h"
#include "transports/verbs/verbs_channel.h"
#include "transports/verbs/verbs_endpoint.h"

namespace {

using ferrule::Clock;
using ferrule::guarded;
using ferrule::VerbsDescription;
using ferrule::VerbsEndpoint;

static_assert(sizeof(VerbsDescription) == FERRULE_VERBS_DESCRIPTION_BYTES);

VerbsEndpoint* unwrap(ferrule_verbs_endpoint* endpoint) { return reinterpret_cast<VerbsEndpoint*>(endpoint); }

Clock::time_point deadline(double timeout) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
}

}  // namespace

extern "C" {

ferrule_status ferrule_verbs_ports(void (*visit)(void* context, const ferrule_verbs_port* port), void* context,
                                   char* error, size_t error_size) {
  return guarded(error, error_size,
                 [&] { ferrule::visit_ports([&](const ferrule_verbs_port& port) { visit(context, &port); }); });
}

ferrule_status ferrule_verbs_open(const ferrule_verbs_options* options, ferrule_verbs_endpoint** out, char* error,
                                  size_t error_size) {
  return guarded(error, error_size,
                 [&] { *out = reinterpret_cast<ferrule_verbs_endpoint*>(new VerbsEndpoint(*options)); });
}

void ferrule_verbs_describe(const ferrule_verbs_endpoint* endpoint, uint8_t* out) {
  const VerbsDescription& mine = reinterpret_cast<const VerbsEndpoint*>(endpoint)->local();
  std::memcpy(out, &mine, sizeof mine);
}

ferrule_status ferrule_verbs_join(ferrule_verbs_endpoint* endpoint, const uint8_t* other, double timeout, char* error,
                                  size_t error_size) {
  return guarded(error, error_size, [&] {
    VerbsDescription theirs;
    std::memcpy(&theirs, other, sizeof theirs);
    unwrap(endpoint)->join(theirs, deadline(timeout));
  });
}

ferrule_status ferrule_verbs_prove(ferrule_verbs_endpoint* endpoint, double timeout, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { unwrap(endpoint)->prove(deadline(timeout)); });
}

void ferrule_verbs_close(ferrule_verbs_endpoint* endpoint) { delete unwrap(endpoint); }

ferrule_channel* ferrule_channel_verbs(const ferrule_ends* ends, ferrule_verbs_endpoint* endpoint) {
  const std::unique_ptr<VerbsEndpoint> owned(unwrap(endpoint));
  return reinterpret_cast<ferrule_channel*>(static_cast<ferrule::Channel*>(new ferrule::VerbsChannel(
      {ends->rank, ends->peer, ends->fd, ends->epoch}, owned->take_pipe(), owned->path())));
}

}  // extern "C"
