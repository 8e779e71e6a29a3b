// Messages to NCCL's own log, and errors that leave the plugin as one of its results.
#pragma once

#include <stdexcept>
#include <string>

#include "nccl/abi.h"
#include "transports/message.h"

namespace ferrule::nccl {

struct Error : std::runtime_error {
  Error(Result result_, const std::string& what) : std::runtime_error(what), result(result_) {}
  Result result;
};

void set_logger(Logger logger);
// `NCCL_DEBUG=INFO` shows it, and `WARN` the latter; from any thread.
void inform(const std::string& text);
void warn(const std::string& text);

Result result_of(const Failure& failure);

// What a function of the table runs in: it never throws.
template <class Body>
Result guarded(Body&& body) noexcept {
  try {
    body();
    return kSuccess;
  } catch (const Error& error) {
    warn(error.what());
    return error.result;
  } catch (const Failure& failure) {
    warn(failure.message);
    return result_of(failure);
  } catch (const std::exception& error) {
    warn(error.what());
    return kSystemError;
  }
}

}  // namespace ferrule::nccl
