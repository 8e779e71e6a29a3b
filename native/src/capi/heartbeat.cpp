// The heartbeat's part of the C ABI.
#include <unistd.h>

#include <cmath>
#include <limits>

#include "capi/guarded.h"
#include "liveness/heartbeat.h"

namespace {

using ferrule::Heartbeat;
using ferrule::invalid;
using Handle = std::shared_ptr<Heartbeat>;

Heartbeat& unwrap(ferrule_heartbeat* heartbeat) { return **reinterpret_cast<Handle*>(heartbeat); }
const Heartbeat& unwrap(const ferrule_heartbeat* heartbeat) { return **reinterpret_cast<const Handle*>(heartbeat); }

ferrule::Clock::duration seconds(double value) {
  return std::chrono::duration_cast<ferrule::Clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace

extern "C" {

ferrule_status ferrule_heartbeat_create(int rank, int size, uint64_t epoch, double interval, double limit,
                                        ferrule_heartbeat** out, char* error, size_t error_size) {
  constexpr double kDay = 86400;
  const bool timely = interval > 0 && interval < kDay && limit < kDay && (limit == 0 || limit >= 2 * interval);
  if (rank < 0 || rank >= size) return invalid("a heartbeat needs a rank of the job", error, error_size);
  if (!timely) {
    return invalid("the limit of silence must be 0 or at least twice the interval", error, error_size);
  }
  return ferrule::guarded(error, error_size, [&] {
    const Heartbeat::Settings settings{rank, size, epoch, seconds(interval), seconds(limit)};
    *out = reinterpret_cast<ferrule_heartbeat*>(new Handle(std::make_shared<Heartbeat>(settings)));
  });
}

ferrule_status ferrule_heartbeat_add(ferrule_heartbeat* heartbeat, int peer, int rail, int fd, const char* link,
                                     int via) {
  Heartbeat& all = unwrap(heartbeat);
  const bool other = peer >= 0 && peer < all.size() && peer != all.rank();
  if (!other || rail < 0 || rail >= FERRULE_MAX_RAILS || via < -1 || via >= all.size()) {
    ::close(fd);
    return FERRULE_INVALID;
  }
  return ferrule::guarded(nullptr, 0, [&] { all.add(peer, static_cast<std::size_t>(rail), fd, link, via); });
}

ferrule_status ferrule_heartbeat_peer(const ferrule_heartbeat* heartbeat, int peer, ferrule_peer_health* out) {
  const Heartbeat& all = unwrap(heartbeat);
  if (peer < 0 || peer >= all.size()) return FERRULE_INVALID;
  return ferrule::guarded(nullptr, 0, [&] {
    const Heartbeat::Health health = all.health(peer);
    *out = {};
    out->presence = static_cast<ferrule_presence>(health.presence);
    out->silent = health.silence == ferrule::Clock::duration::max()
                      ? std::numeric_limits<double>::infinity()
                      : std::chrono::duration<double>(health.silence).count();
    out->rails = static_cast<int>(health.rails.size());
    for (std::size_t rail = 0; rail < health.rails.size(); ++rail) {
      if (health.rails[rail]) out->rails_alive |= std::uint64_t{1} << rail;
    }
    ferrule::put_text(health.words.c_str(), out->words, sizeof out->words);
  });
}

void ferrule_heartbeat_close(ferrule_heartbeat* heartbeat) { unwrap(heartbeat).close(); }

void ferrule_heartbeat_destroy(ferrule_heartbeat* heartbeat) { delete reinterpret_cast<Handle*>(heartbeat); }

}  // extern "C"
