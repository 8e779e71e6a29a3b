#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "step/operations.h"

namespace ferrule {
namespace {

constexpr std::size_t kTilesPerThread = 4;  // so that threads end at about the same time
constexpr std::size_t kFewQueries = 8;      // of a tile

}  // namespace

void Attend::run(Step& step) {
  Machine& machine = step.machine;
  KvCache& cache = machine.cache;
  const CacheLayer& of = cache.layer(layer);
  const std::size_t share = heads / of.heads;
  queries_ = rows_of(step, query);
  keys_ = rows_of(step, key);
  values_ = rows_of(step, value);
  results_ = rows_of(step, {to, 0});
  if (step.shared_out) gather_rows(step);
  if (machine.context != nullptr) {
    partial_.resize(step.total * heads * of.value_width);
    results_ = {heads * of.value_width, partial_.data()};
    highest_.resize(step.total * heads);
    sums_.resize(step.total * heads);
  }
  // Larger tiles read the cache less often; smaller ones keep more threads busy.
  const auto threads = static_cast<std::size_t>(machine.pool.threads());
  const std::size_t each = (machine.context == nullptr ? step.count : step.total) * heads / (kTilesPerThread * threads);
  const std::size_t most = threads == 1 ? kMostQueries : std::clamp(each, kFewQueries, kMostQueries);
  tiles_.clear();
  std::vector<std::size_t> starts;
  std::size_t row = 0;
  for (std::size_t span = 0; span < step.spans.size(); ++span) {
    const SequenceSpan& given = step.spans[span];
    const std::vector<KvCache::Page>& pages = cache.pages(given.sequence);
    starts.push_back(row);
    for (std::size_t i = 0; i < given.tokens; ++i, ++row) {
      const std::size_t position = given.seen + i, page = position / kPageTokens;
      if (!cache.stripe().has(page)) continue;
      for (std::size_t head = 0; head < of.heads; ++head) {
        cache.store(pages[page / cache.stripe().ranks], layer, position % kPageTokens, head,
                    keys_.row(row) + head * of.width, values_.row(row) + head * of.value_width);
      }
    }
    const std::size_t queries = given.tokens * share, count = (queries + most - 1) / most;
    for (std::size_t head = 0; head < of.heads; ++head) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t first = queries * i / count;
        tiles_.push_back({span, head, first, queries * (i + 1) / count - first});
      }
    }
  }
  std::atomic<std::size_t> next{0};
  machine.pool.run([&](int) {
    for (std::size_t i = next.fetch_add(1); i < tiles_.size(); i = next.fetch_add(1)) {
      run_tile(step, tiles_[i], starts[tiles_[i].span]);
    }
  });
  if (machine.context != nullptr) merge(step);
}

void Attend::run_tile(Step& step, const Tile& tile, std::size_t row) {
  KvCache& cache = step.machine.cache;
  const CacheLayer& of = cache.layer(layer);
  const SequenceSpan& span = step.spans[tile.span];
  const std::size_t share = heads / of.heads;
  const std::size_t padded = of.padded_value_width(cache.cached());
  static thread_local std::vector<float> results;  // values are computed in whole vectors
  results.resize(kMostQueries * padded);
  const float* queries[kMostQueries];
  float* out[kMostQueries];
  std::int64_t positions[kMostQueries];
  float logits_of_sinks[kMostQueries], highest[kMostQueries], sums[kMostQueries];
  const bool sunk = !sinks.empty() && cache.stripe().rank == 0;  // once among all ranks
  for (std::size_t i = 0; i < tile.count; ++i) {
    const std::size_t token = (tile.first + i) / share;
    const std::size_t head = tile.head * share + (tile.first + i) % share;
    queries[i] = queries_.row(row + token) + head * of.width;
    out[i] = results.data() + i * padded;
    positions[i] = static_cast<std::int64_t>(span.seen + token);
    if (sunk) logits_of_sinks[i] = sinks[head];
  }
  const std::vector<KvCache::Page>& pages = cache.pages(span.sequence);
  static thread_local std::vector<const std::uint8_t*> keys, values;
  keys.resize(pages.size());
  values.resize(pages.size());
  for (std::size_t page = 0; page < pages.size(); ++page) {
    keys[page] = cache.keys(pages[page], layer, tile.head);
    values[page] = keys[page] + of.key_bytes(cache.cached());
  }
  AttentionTile work;
  work.count = tile.count;
  work.width = of.width;
  work.value_width = padded;
  work.queries = queries;
  work.out = out;
  work.positions = positions;
  work.sinks = sunk ? logits_of_sinks : nullptr;
  work.scale = scale;
  work.softcap = softcap;
  work.window = window;
  work.cached = cache.cached();
  work.first_page = cache.stripe().rank;
  work.page_step = cache.stripe().ranks;
  work.highest = highest;
  work.sums = sums;
  work.keys = keys.data();
  work.values = values.data();
  step.machine.kernels.attend(work);
  for (std::size_t i = 0; i < tile.count; ++i) {
    const std::size_t token = (tile.first + i) / share;
    const std::size_t head = tile.head * share + (tile.first + i) % share;
    std::memcpy(results_.row(row + token) + head * of.value_width, out[i], of.value_width * sizeof(float));
    if (step.machine.context != nullptr) {
      highest_[(row + token) * heads + head] = highest[i];
      sums_[(row + token) * heads + head] = sums[i];
    }
  }
}

// The queries and the new keys and values of all tokens, of which each rank has made those of its rows.
void Attend::gather_rows(Step& step) {
  Machine& machine = step.machine;
  const RowTable& kernels = machine.kernels;
  const CacheLayer& of = machine.cache.layer(layer);
  const bool latent = key.reg == value.reg && key.offset == value.offset;  // which are values, and keys behind them
  const std::size_t of_queries = heads * of.width, of_keys = of.heads * of.width;
  const std::size_t of_values = latent ? 0 : of.heads * of.value_width;
  const std::size_t width = of_queries + of_keys + of_values, bytes = element_bytes(machine.wire);
  sent_.resize(step.part() * width * bytes);
  each_row(step, [&](std::size_t i) {
    std::uint8_t* const row = sent_.data() + i * width * bytes;
    kernels.narrow(machine.wire, queries_.row(i), of_queries, row);
    kernels.narrow(machine.wire, keys_.row(i), of_keys, row + of_queries * bytes);
    kernels.narrow(machine.wire, values_.row(i), of_values, row + (of_queries + of_keys) * bytes);
  });
  received_.resize(machine.cache.stripe().ranks * sent_.size());
  Operation operation;
  operation.op = Op::all_gather;
  operation.dtype = Dtype::u8;
  operation.in = sent_.data();
  operation.out = received_.data();
  operation.count = sent_.size();
  step.run_in(*machine.context, operation);
  gathered_.assign(step.total * width, 0.0F);
  each_of(step, step.total, [&](std::size_t i) {
    kernels.add_narrow(machine.wire, received_.data() + i * width * bytes, width, 1, gathered_.data() + i * width);
  });
  queries_ = {width, gathered_.data()};
  keys_ = {width, gathered_.data() + of_queries};
  values_ = {width, latent ? keys_.data : keys_.data + of_keys};
}

// The results of this rank's rows, of all ranks' partial ones.
void Attend::merge(Step& step) {
  Machine& machine = step.machine;
  const RowTable& kernels = machine.kernels;
  const std::size_t value_width = machine.cache.layer(layer).value_width, width = heads * value_width;
  const std::size_t ranks = machine.cache.stripe().ranks, bytes = element_bytes(machine.wire);
  const std::size_t numbers = heads * sizeof(float), row_bytes = width * bytes + 2 * numbers;
  const std::size_t each = step.shared_out ? step.part() : step.total;  // rows of a rank for another
  sent_.resize((step.shared_out ? ranks : 1) * each * row_bytes);
  each_of(step, step.total, [&](std::size_t i) {
    std::uint8_t* const row = sent_.data() + i * row_bytes;
    kernels.narrow(machine.wire, results_.row(i), width, row);
    std::memcpy(row + width * bytes, highest_.data() + i * heads, numbers);
    std::memcpy(row + width * bytes + numbers, sums_.data() + i * heads, numbers);
  });
  received_.resize(ranks * each * row_bytes);
  Operation operation;
  operation.op = step.shared_out ? Op::all_to_all : Op::all_gather;
  operation.dtype = Dtype::u8;
  operation.in = sent_.data();
  operation.out = received_.data();
  operation.count = each * row_bytes;
  step.run_in(*machine.context, operation);
  each_row(step, [&](std::size_t i) {
    float* const row = step.at(to).row(i);
    std::memset(row, 0, width * sizeof(float));
    const auto part = [&](std::size_t rank) { return received_.data() + (rank * each + i) * row_bytes; };
    const auto number = [&](std::size_t rank, std::size_t index) {
      float found = 0;
      std::memcpy(&found, part(rank) + width * bytes + index * sizeof(float), sizeof found);
      return found;
    };
    for (std::size_t head = 0; head < heads; ++head) {
      float top = number(0, head), total = 0;
      for (std::size_t rank = 1; rank < ranks; ++rank) top = std::max(top, number(rank, head));
      const auto weight = [&](std::size_t rank) {
        return number(rank, heads + head) * std::exp(number(rank, head) - top);
      };
      for (std::size_t rank = 0; rank < ranks; ++rank) total += weight(rank);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        kernels.add_narrow(machine.wire, part(rank) + head * value_width * bytes, value_width, weight(rank) / total,
                           row + head * value_width);
      }
    }
  });
}

}  // namespace ferrule
