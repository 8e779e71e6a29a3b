// The shaper's part of the C ABI.
#include "capi/guarded.h"
#include "emulation/shaper/shaper.h"

namespace {

using ferrule::shaper::Shape;
using ferrule::shaper::Shaper;
using ferrule::shaper::Time;

constexpr double kNanoseconds = 1e9;
constexpr double kLongest = 3600;
constexpr int kMostEnds = 1024;

Shaper& unwrap(ferrule_shaper* shaper) { return *reinterpret_cast<Shaper*>(shaper); }

bool is_chance(double value) { return value >= 0 && value <= 1; }

bool usable(const ferrule_shape& shape) {
  const bool times = shape.delay >= 0 && shape.delay <= kLongest && shape.jitter >= 0 && shape.jitter <= kLongest;
  const bool chances = is_chance(shape.loss) && is_chance(shape.corrupt) && is_chance(shape.duplicate) &&
                       is_chance(shape.reorder) && shape.collapse >= 0 && shape.collapse <= 2;
  return times && chances && shape.rate >= 0 && shape.flow >= FERRULE_FLOW_MOVES && shape.flow <= FERRULE_FLOW_DARK;
}

Shape native(const ferrule_shape& shape) {
  return {.rate = shape.rate,
          .delay = static_cast<Time>(shape.delay * kNanoseconds),
          .jitter = static_cast<Time>(shape.jitter * kNanoseconds),
          .loss = shape.loss,
          .corrupt = shape.corrupt,
          .duplicate = shape.duplicate,
          .reorder = shape.reorder,
          .collapse = shape.collapse,
          .queue = shape.queue,
          .overhead = shape.overhead,
          .flow = static_cast<ferrule::shaper::Flow>(shape.flow)};
}

}  // namespace

extern "C" {

ferrule_status ferrule_shaper_create(int threads, ferrule_shaper** out, char* error, size_t error_size) {
  return ferrule::guarded(error, error_size, [&] { *out = reinterpret_cast<ferrule_shaper*>(new Shaper(threads)); });
}

ferrule_status ferrule_shaper_join(ferrule_shaper* shaper, const int* fds, int ends, uint64_t seed, int* cable,
                                   char* error, size_t error_size) {
  if (ends < 2 || ends > kMostEnds) return ferrule::invalid("a cable has two ends, or more", error, error_size);
  return ferrule::guarded(error, error_size, [&] { *cable = unwrap(shaper).join({fds, fds + ends}, seed); });
}

ferrule_status ferrule_shaper_part(ferrule_shaper* shaper, int cable, char* error, size_t error_size) {
  return ferrule::guarded(error, error_size, [&] { unwrap(shaper).part(cable); });
}

ferrule_status ferrule_shaper_set(ferrule_shaper* shaper, int cable, int end, const ferrule_shape* shape, char* error,
                                  size_t error_size) {
  if (!usable(*shape)) return ferrule::invalid("a cable cannot be like that", error, error_size);
  return ferrule::guarded(error, error_size, [&] { unwrap(shaper).set(cable, end, native(*shape)); });
}

ferrule_status ferrule_shaper_clear(ferrule_shaper* shaper, int cable, char* error, size_t error_size) {
  return ferrule::guarded(error, error_size, [&] { unwrap(shaper).clear(cable); });
}

ferrule_status ferrule_shaper_read(ferrule_shaper* shaper, int cable, int end, ferrule_shape_counters* out, char* error,
                                   size_t error_size) {
  return ferrule::guarded(error, error_size, [&] {
    const auto [now, missed, unsent] = unwrap(shaper).counters(cable, end);
    *out = {.frames = now.frames,
            .bytes = now.bytes,
            .delivered_frames = now.delivered_frames,
            .delivered_bytes = now.delivered_bytes,
            .overflowed = now.overflowed,
            .lost = now.lost,
            .cut = now.cut,
            .corrupted = now.corrupted,
            .duplicated = now.duplicated,
            .reordered = now.reordered,
            .queued_bytes = now.queued_bytes,
            .missed = missed,
            .unsent = unsent,
            .latest = static_cast<double>(now.latest) / kNanoseconds};
  });
}

void ferrule_shaper_destroy(ferrule_shaper* shaper) { delete &unwrap(shaper); }

}  // extern "C"
