// Collectives that go hop by hop: for groups where not every pair has a link of its own, and for many ranks.
#include <algorithm>
#include <cstring>

#include "collectives/net.h"

namespace ferrule {

Combine NetCollectives::combine_of(const Call& call, ReduceFunction reduce) const {
  const auto dtype = static_cast<Dtype>(call.dtype);
  const bool averages = call.averages();
  return {averages ? find_reduction(dtype, Reduction::sum) : reduce, reduce, size_};
}

void NetCollectives::hop_all_reduce(Algorithm algorithm, const Call& call, std::byte* data, ReduceFunction reduce) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const Array array{data, bytes, element};
  const Combine combine = combine_of(call, reduce);
  if (algorithm == Algorithm::tree) {
    return run(call, tree_scratch(tree_, bytes, element),
               [&](std::byte* scratch) { tree_all_reduce(program_, tree_, array, combine, scratch); });
  }
  if (algorithm == Algorithm::ring) {
    return run(call, ring_scratch(),
               [&](std::byte* scratch) { ring_all_reduce(program_, ring_, array, combine, scratch); });
  }
  // Every rank learns what all have, and combines it in the order of ranks.
  const auto n = static_cast<std::size_t>(size_);
  const std::byte* slots = nullptr;
  run(call, n * bytes, [&](std::byte* scratch) {
    slots = scratch;
    if (bytes != 0) std::memcpy(scratch, data, bytes);
    doubling_gather(program_, rank_, size_, scratch, bytes);
  });
  std::vector<const void*> sources(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    sources[rank] = slots + ((static_cast<std::size_t>(rank_) + n - rank) % n) * bytes;
  if (bytes != 0) reduce(data, sources.data(), size_, bytes / element, size_);
}

void NetCollectives::hop_all_gather(Algorithm algorithm, const Call& call, const std::byte* mine, std::byte* out) {
  const auto bytes = static_cast<std::size_t>(call.bytes);
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const auto n = static_cast<std::size_t>(size_);
  const auto part = [&](std::size_t rank) { return bytes == 0 ? out : out + rank * bytes; };
  if (algorithm == Algorithm::tree) {
    return run(call, 0, [&](std::byte*) {
      for (std::size_t rank = 0; rank < n; ++rank) {
        tree_broadcast(program_, tree_, static_cast<int>(rank), {part(rank), bytes, element});
      }
    });
  }
  if (algorithm == Algorithm::ring) {
    return run(call, 0, [&](std::byte*) { ring_all_gather(program_, ring_, out, bytes, element); });
  }
  const std::byte* slots = nullptr;
  run(call, n * bytes, [&](std::byte* scratch) {
    slots = scratch;
    if (bytes != 0) std::memcpy(scratch, mine, bytes);
    doubling_gather(program_, rank_, size_, scratch, bytes);
  });
  for (std::size_t back = 1; back < n && bytes != 0; ++back) {
    std::memcpy(part((static_cast<std::size_t>(rank_) + n - back) % n), slots + back * bytes, bytes);
  }
}

void NetCollectives::hop_reduce_scatter(Algorithm algorithm, const Call& call, const std::byte* in, std::byte* out,
                                        ReduceFunction reduce) {
  const std::size_t element = size_of(static_cast<Dtype>(call.dtype));
  const Array part{out, static_cast<std::size_t>(call.bytes) / static_cast<std::size_t>(size_), element};
  const Combine combine = combine_of(call, reduce);
  if (algorithm == Algorithm::ring) {
    return run(call, ring_scratch(),
               [&](std::byte* scratch) { ring_reduce_scatter(program_, ring_, in, part, combine, scratch); });
  }
  std::vector<int> owners;
  for (int rank = 0; rank < size_; ++rank) owners.push_back(rank);
  run(call, tree_scratch(tree_, part.bytes, element),
      [&](std::byte* scratch) { tree_reduce(program_, tree_, rank_, owners, in, part, combine, scratch); });
}

}  // namespace ferrule
