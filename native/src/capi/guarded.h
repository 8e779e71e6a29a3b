// The edge of the C ABI: no exception passes.
#pragma once

#include <cstring>
#include <exception>

#include "ferrule/ferrule.h"

namespace ferrule {

inline void put_text(const char* text, char* error, std::size_t error_size) {
  if (error == nullptr || error_size == 0) return;
  std::strncpy(error, text, error_size - 1);
  error[error_size - 1] = '\0';
}

inline ferrule_status invalid(const char* text, char* error, std::size_t error_size) {
  put_text(text, error, error_size);
  return FERRULE_INVALID;
}

template <class Body>
ferrule_status guarded(char* error, std::size_t error_size, Body&& body) {
  try {
    body();
    return FERRULE_OK;
  } catch (const std::exception& cause) {
    put_text(cause.what(), error, error_size);
    return FERRULE_SYSTEM;
  }
}

}  // namespace ferrule
