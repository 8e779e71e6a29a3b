#include "nccl/log.h"

#include <atomic>
#include <cstdio>

namespace ferrule::nccl {
namespace {

std::atomic<Logger> logger_{nullptr};

void log(LogLevel level, const std::string& text) {
  const Logger logger = logger_.load(std::memory_order_acquire);
  if (logger != nullptr) logger(level, kLogInit | kLogNet, "ferrule", 0, "NET/Ferrule : %s", text.c_str());
}

}  // namespace

void set_logger(Logger logger) { logger_.store(logger, std::memory_order_release); }
void inform(const std::string& text) { log(kLogInfo, text); }
void warn(const std::string& text) { log(kLogWarn, text); }

Result result_of(const Failure& failure) {
  switch (failure.status) {
    case Status::peer_lost:
    case Status::aborted:
    case Status::timeout:
      return kRemoteError;
    case Status::mismatch:
      return kInternalError;
    case Status::invalid:
      return kInvalidUsage;
    default:
      return kSystemError;
  }
}

}  // namespace ferrule::nccl
