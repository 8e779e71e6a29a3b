// The C ABI: arguments in, status out; no exception passes.
#include <algorithm>
#include <memory>

#include "group/group.h"
#include "capi/guarded.h"
#include "transports/tcp/rail_channel.h"
#include "transports/shm/shm_channel.h"
#include "transports/tcp/tcp_channel.h"

namespace {

using ferrule::Channel;
using ferrule::Ends;
using ferrule::Group;
using ferrule::Segment;
using ferrule::guarded;
using WorkHandle = std::shared_ptr<ferrule::Work>;

Ends ends_of(const ferrule_ends* ends) { return {ends->rank, ends->peer, ends->fd, ends->epoch}; }
ferrule_channel* wrap(Channel* channel) { return reinterpret_cast<ferrule_channel*>(channel); }
WorkHandle& unwrap(ferrule_work* work) { return *reinterpret_cast<WorkHandle*>(work); }

Group* unwrap(ferrule_group* group) { return reinterpret_cast<Group*>(group); }
const Group* unwrap(const ferrule_group* group) { return reinterpret_cast<const Group*>(group); }

}  // namespace

extern "C" {

ferrule_status ferrule_segment_create(const uint8_t* token, int ranks, ferrule_segment** out, char* error,
                                      size_t error_size) {
  return guarded(error, error_size, [&] {
    *out = reinterpret_cast<ferrule_segment*>(Segment::create(token, ranks).release());
  });
}

ferrule_status ferrule_segment_open(const char* place, const uint8_t* token, int ranks, ferrule_segment** out,
                                    char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    *out = reinterpret_cast<ferrule_segment*>(Segment::open(place, token, ranks).release());
  });
}

const char* ferrule_segment_place(const ferrule_segment* segment) {
  return reinterpret_cast<const Segment*>(segment)->place().c_str();
}

void ferrule_segment_hide(ferrule_segment* segment) { reinterpret_cast<Segment*>(segment)->hide(); }

void ferrule_segment_destroy(ferrule_segment* segment) { delete reinterpret_cast<Segment*>(segment); }

ferrule_status ferrule_group_create(const ferrule_group_options* options, ferrule_group** out, char* error,
                                    size_t error_size) {
  const bool valid = options->abi_version == FERRULE_ABI_VERSION && options->size >= 1 && options->rank >= 0 &&
                     options->rank < options->size && (options->size == 1 || (options->collectives != nullptr && options->messages != nullptr)) &&
                     (options->heartbeat == nullptr || options->heartbeat_ranks != nullptr);
  if (!valid) return ferrule::invalid("the group's options are not valid for this version", error, error_size);
  return guarded(error, error_size, [&] { *out = reinterpret_cast<ferrule_group*>(new Group(*options)); });
}

ferrule_status ferrule_group_close(ferrule_group* group) { return unwrap(group)->close(); }

void ferrule_group_abort(ferrule_group* group, const char* reason) { unwrap(group)->abort(reason); }

void ferrule_group_failure(const ferrule_group* group, ferrule_failure* out) { *out = unwrap(group)->failure(); }

void ferrule_group_destroy(ferrule_group* group) { delete unwrap(group); }

ferrule_channel* ferrule_channel_tcp(const ferrule_ends* ends) { return wrap(new ferrule::TcpChannel(ends_of(ends))); }

ferrule_channel* ferrule_channel_shm(const ferrule_ends* ends, ferrule_segment* segment, ferrule_stream stream,
                                     int my_index, int peer_index) {
  return wrap(new ferrule::ShmChannel(ends_of(ends), *reinterpret_cast<Segment*>(segment),
                                      static_cast<ferrule::Stream>(stream), my_index, peer_index));
}

ferrule_channel* ferrule_channel_rails(const ferrule_ends* ends, const int* fds, size_t count, int best,
                                       double stall_seconds) {
  if (count == 0 || best < 0 || static_cast<size_t>(best) >= count || !(stall_seconds > 0)) return nullptr;
  Ends peers = ends_of(ends);
  peers.fd = -1;
  const auto stall = std::chrono::duration_cast<ferrule::Clock::duration>(std::chrono::duration<double>(stall_seconds));
  return wrap(new ferrule::RailChannel(peers, {fds, count}, best, stall));
}

const char* ferrule_channel_transport(const ferrule_channel* channel) {
  return reinterpret_cast<const Channel*>(channel)->transport();
}

void ferrule_channel_destroy(ferrule_channel* channel) { delete reinterpret_cast<Channel*>(channel); }

ferrule_status ferrule_group_add_rail(ferrule_group* group, ferrule_stream stream, int peer, int rail, int fd) {
  return unwrap(group)->add_rail(stream, peer, rail, fd);
}

size_t ferrule_group_rails(const ferrule_group* group, ferrule_stream stream, int peer, ferrule_rail* out, size_t size) {
  const std::vector<ferrule::RailState> rails = unwrap(group)->rails(stream, peer);
  for (size_t i = 0; i < std::min(size, rails.size()); ++i) {
    out[i] = {rails[i].alive ? 1 : 0, rails[i].bytes_sent, rails[i].bytes_received, rails[i].deaths};
  }
  return rails.size();
}

ferrule_status ferrule_run(ferrule_group* group, const ferrule_operation* operations, size_t count, double timeout) {
  return unwrap(group)->run(operations, count, timeout);
}

ferrule_status ferrule_start(ferrule_group* group, const ferrule_operation* operations, size_t count, double timeout,
                             ferrule_work** work) {
  WorkHandle started;
  const ferrule_status status = unwrap(group)->start(operations, count, timeout, started);
  if (status == FERRULE_OK) *work = reinterpret_cast<ferrule_work*>(new WorkHandle(std::move(started)));
  return status;
}

ferrule_status ferrule_work_wait(ferrule_work* work, double timeout) { return unwrap(work)->wait(timeout); }

void ferrule_work_then(ferrule_work* work, void (*done)(void* context), void* context) {
  unwrap(work)->then([done, context] { done(context); });
}

int ferrule_work_source(ferrule_work* work) { return unwrap(work)->source(); }

void ferrule_work_destroy(ferrule_work* work) { delete reinterpret_cast<WorkHandle*>(work); }

}  // extern "C"
