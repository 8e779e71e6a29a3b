// The relay's part of the C ABI.
#include "capi/guarded.h"
#include "relay/relay.h"

namespace {

ferrule::Relay& unwrap(ferrule_relay* relay) { return *reinterpret_cast<ferrule::Relay*>(relay); }

}  // namespace

extern "C" {

ferrule_status ferrule_relay_create(ferrule_relay** out, char* error, size_t error_size) {
  return ferrule::guarded(error, error_size, [&] { *out = reinterpret_cast<ferrule_relay*>(new ferrule::Relay()); });
}

ferrule_status ferrule_relay_add(ferrule_relay* relay, int fd_a, int fd_b, char* error, size_t error_size) {
  return ferrule::guarded(error, error_size, [&] { unwrap(relay).add(fd_a, fd_b); });
}

void ferrule_relay_close(ferrule_relay* relay) { unwrap(relay).close(); }

void ferrule_relay_destroy(ferrule_relay* relay) { delete &unwrap(relay); }

}  // extern "C"
