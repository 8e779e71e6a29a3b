// The RDMA part of the C ABI in a build without its headers.
#include "capi/guarded.h"

namespace {

ferrule_status absent(char* error, size_t error_size) {
  ferrule::put_text("this Ferrule was built without RDMA; install libibverbs-dev and librdmacm-dev and build it again",
                    error, error_size);
  return FERRULE_SYSTEM;
}

}  // namespace

extern "C" {

ferrule_status ferrule_verbs_ports(void (*)(void*, const ferrule_verbs_port*), void*, char* error, size_t error_size) {
  return absent(error, error_size);
}

ferrule_status ferrule_verbs_open(const ferrule_verbs_options*, ferrule_verbs_endpoint**, char* error,
                                  size_t error_size) {
  return absent(error, error_size);
}

ferrule_status ferrule_verbs_join(ferrule_verbs_endpoint*, const uint8_t*, double, char* error, size_t error_size) {
  return absent(error, error_size);
}

ferrule_status ferrule_verbs_prove(ferrule_verbs_endpoint*, double, char* error, size_t error_size) {
  return absent(error, error_size);
}

// There are no endpoints.
void ferrule_verbs_describe(const ferrule_verbs_endpoint*, uint8_t*) {}
void ferrule_verbs_close(ferrule_verbs_endpoint*) {}
ferrule_channel* ferrule_channel_verbs(const ferrule_ends*, ferrule_verbs_endpoint*) { return nullptr; }

}  // extern "C"
