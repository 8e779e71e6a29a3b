// The C ABI: arguments in, status out; no exception passes.
#include <cstring>
#include <memory>
#include <new>

#include "group.h"

namespace {

using ferrule::Group;
using ferrule::Segment;

Group* unwrap(ferrule_group* group) { return reinterpret_cast<Group*>(group); }
const Group* unwrap(const ferrule_group* group) { return reinterpret_cast<const Group*>(group); }

template <class Body>
ferrule_status guarded(char* error, std::size_t error_size, Body&& body) {
  try {
    body();
    return FERRULE_OK;
  } catch (const std::exception& cause) {
    if (error != nullptr && error_size != 0) {
      std::strncpy(error, cause.what(), error_size - 1);
      error[error_size - 1] = '\0';
    }
    return FERRULE_SYSTEM;
  }
}

}  // namespace

extern "C" {

ferrule_status ferrule_segment_create(const char* name, const uint8_t* token, int ranks, ferrule_segment** out,
                                      char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    *out = reinterpret_cast<ferrule_segment*>(Segment::create(name, token, ranks).release());
  });
}

ferrule_status ferrule_segment_open(const char* name, const uint8_t* token, int ranks, ferrule_segment** out,
                                    char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    *out = reinterpret_cast<ferrule_segment*>(Segment::open(name, token, ranks).release());
  });
}

ferrule_status ferrule_segment_unlink(const char* name) {
  return guarded(nullptr, 0, [&] { Segment::unlink(name); });
}

void ferrule_segment_destroy(ferrule_segment* segment) { delete reinterpret_cast<Segment*>(segment); }

ferrule_status ferrule_group_create(const ferrule_group_options* options, ferrule_group** out, char* error,
                                    size_t error_size) {
  const bool valid = options->abi_version == FERRULE_ABI_VERSION && options->size >= 1 && options->rank >= 0 &&
                     options->rank < options->size && (options->size == 1 || options->fds != nullptr);
  if (!valid) {
    if (error != nullptr && error_size != 0) {
      std::strncpy(error, "the group's options are not valid for this version", error_size - 1);
      error[error_size - 1] = '\0';
    }
    return FERRULE_INVALID;
  }
  return guarded(error, error_size, [&] { *out = reinterpret_cast<ferrule_group*>(new Group(*options)); });
}

ferrule_status ferrule_group_close(ferrule_group* group) { return unwrap(group)->close(); }

void ferrule_group_abort(ferrule_group* group, const char* reason) { unwrap(group)->abort(reason); }

void ferrule_group_failure(const ferrule_group* group, ferrule_failure* out) { *out = unwrap(group)->failure(); }

const char* ferrule_group_transport(const ferrule_group* group, int peer) { return unwrap(group)->transport(peer); }

void ferrule_group_destroy(ferrule_group* group) { delete unwrap(group); }

ferrule_status ferrule_all_reduce(ferrule_group* group, void* data, size_t count, ferrule_dtype dtype,
                                  ferrule_reduction reduction, double timeout) {
  return unwrap(group)->all_reduce(data, count, dtype, reduction, timeout);
}

ferrule_status ferrule_all_gather(ferrule_group* group, const void* in, void* out, size_t count, ferrule_dtype dtype,
                                  double timeout) {
  return unwrap(group)->all_gather(in, out, count, dtype, timeout);
}

ferrule_status ferrule_reduce_scatter(ferrule_group* group, const void* in, void* out, size_t count,
                                      ferrule_dtype dtype, ferrule_reduction reduction, double timeout) {
  return unwrap(group)->reduce_scatter(in, out, count, dtype, reduction, timeout);
}

ferrule_status ferrule_broadcast(ferrule_group* group, void* data, size_t count, ferrule_dtype dtype, int root,
                                 double timeout) {
  return unwrap(group)->broadcast(data, count, dtype, root, timeout);
}

ferrule_status ferrule_send(ferrule_group* group, const void* data, size_t count, ferrule_dtype dtype, int peer,
                            double timeout) {
  return unwrap(group)->send(data, count, dtype, peer, timeout);
}

ferrule_status ferrule_recv(ferrule_group* group, void* data, size_t count, ferrule_dtype dtype, int peer,
                            double timeout) {
  return unwrap(group)->recv(data, count, dtype, peer, timeout);
}

ferrule_status ferrule_barrier(ferrule_group* group, double timeout) { return unwrap(group)->barrier(timeout); }

}  // extern "C"
