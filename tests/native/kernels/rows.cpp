// Loops over rows of activations, and attention, against the same in double precision.
#include "kernels/rows.h"

#include <algorithm>
#include <limits>

#include "kernels/instructions.h"
#include "reduce/formats.h"

namespace {

using ferrule::Activation;
using ferrule::AttentionTile;
using ferrule::Cached;
using ferrule::code_bits;
using ferrule::Element;
using ferrule::element_bytes;
using ferrule::element_of;
using ferrule::has_codes;
using ferrule::kCacheGroup;
using ferrule::kPageTokens;
using testing::kEpsilon;
using testing::near;
using testing::normal;

constexpr std::size_t kLengths[] = {1, 15, 16, 17, 100, 128};

const ferrule::RowTable& kernels() { return ferrule::row_kernels(); }

void check_norm(std::size_t n, bool mean, bool whole) {
  const std::vector<float> x = normal(n), weight = normal(n), bias = normal(n);
  std::vector<float> y(n);
  constexpr float kSmall = 1e-5F;
  kernels().norm(x.data(), n, whole ? weight.data() : nullptr, whole ? bias.data() : nullptr, kSmall, mean, y.data());
  double middle = 0;
  for (const float each : x) middle += each / static_cast<double>(n);
  if (!mean) middle = 0;
  double squares = 0;
  for (const float each : x) squares += (each - middle) * (each - middle) / static_cast<double>(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double by = 1 / std::sqrt(squares + kSmall);
    const double wanted = (x[i] - middle) * by * (whole ? weight[i] : 1) + (whole ? bias[i] : 0);
    // Of one number nothing is left but what was lost in rounding.
    const double size = (std::abs(x[i]) + std::abs(middle)) * by * std::abs(whole ? weight[i] : 1) + std::abs(wanted);
    near(y[i], wanted, (static_cast<double>(n) + 8) * kEpsilon * (size + 1), "norm");
  }
}

double activated(Activation kind, double gate, double up) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (kind) {
    case Activation::silu:
      return gate * sigmoid(gate) * up;
    case Activation::gelu:
      return 0.5 * gate * (1 + std::erf(gate * std::sqrt(0.5))) * up;
    case Activation::gelu_tanh:
      return 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case Activation::relu:
      return std::max(gate, 0.0) * up;
    case Activation::gpt_oss:
      break;
  }
  gate = std::min(gate, 7.0);
  return (std::clamp(up, -7.0, 7.0) + 1) * gate * sigmoid(1.702 * gate);
}

void check_gate(std::size_t n) {
  std::vector<float> gate = normal(n), y(n);
  const std::vector<float> up = normal(n);
  for (float& each : gate) each *= 5;  // some beyond 7
  for (const Activation kind :
       {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::gpt_oss}) {
    for (const bool both : {true, false}) {
      if (kind == Activation::gpt_oss && !both) continue;
      kernels().gate(kind, gate.data(), both ? up.data() : nullptr, n, y.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double size = std::abs(gate[i]) * (1 + std::abs(up[i]));
        near(y[i], activated(kind, gate[i], both ? up[i] : 1), 8 * kEpsilon * size, "gate");
      }
    }
  }
}

void check_rotate(std::size_t half, bool interleaved) {
  const std::vector<float> x = normal(2 * half), angles = normal(half);
  std::vector<float> y = x, cos(half), sin(half);
  for (std::size_t i = 0; i < half; ++i) {
    cos[i] = std::cos(angles[i]);
    sin[i] = std::sin(angles[i]);
  }
  kernels().rotate(y.data(), half, cos.data(), sin.data(), interleaved);
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t first = interleaved ? 2 * i : i;
    const std::size_t second = interleaved ? 2 * i + 1 : half + i;
    const double a = x[first];
    const double b = x[second];
    const double most = 2 * kEpsilon * (std::abs(a) + std::abs(b));
    near(y[first], a * cos[i] - b * sin[i], most, "rotate");
    near(y[second], b * cos[i] + a * sin[i], most, "rotate");
  }
}

void check_add(std::size_t n) {
  const std::vector<float> x = normal(n), before = normal(n);
  std::vector<float> y = before;
  kernels().add(y.data(), x.data(), n, 0.7F);
  for (std::size_t i = 0; i < n; ++i) {
    near(y[i], before[i] + 0.7F * static_cast<double>(x[i]), 2 * kEpsilon * (std::abs(before[i]) + std::abs(x[i])),
         "add");
  }
}

// What is no number is passed over, and weighs nothing.
void check_exponentials(std::size_t n) {
  std::vector<float> x = normal(n), y(n);
  CHECK(kernels().highest(x.data(), n) == *std::ranges::max_element(x));
  CHECK(kernels().highest(x.data(), 0) == -std::numeric_limits<float>::infinity());
  const float top = kernels().highest(x.data(), n);
  for (std::size_t i = 0; i < n; i += 7) x[i] = std::numeric_limits<float>::quiet_NaN();
  x[n / 2] = -std::numeric_limits<float>::infinity();
  const float sum = kernels().exponentials(x.data(), n, top, 3.0F, y.data());
  double wanted = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (x[i] < top || x[i] == top) {
      const double e = std::exp((static_cast<double>(x[i]) - top) * 3);
      near(y[i], e, 64 * kEpsilon * e + 2e-38, "exponentials");
      wanted += e;
    } else {
      CHECK(y[i] >= 0 && y[i] < 2e-38F);
    }
  }
  near(sum, wanted, 64 * kEpsilon * wanted + 1e-36, "sum of exponentials");
  std::ranges::fill(x, std::numeric_limits<float>::quiet_NaN());
  CHECK(kernels().highest(x.data(), n) == -std::numeric_limits<float>::infinity());
}

// Numbers of every size that has a place in float16, and some beyond, are rounded as the fabric rounds them.
void check_narrow(std::size_t n) {
  std::vector<float> x = normal(n);
  for (float& each : x) each = std::ldexp(each, static_cast<int>(testing::below(46)) - 28);
  x[n - 1] = 1e6F;
  x[0] = 1 + 0x1p-8F;  // ties, with an even and an odd number below
  x[n / 4] = 1 + 0x3p-8F;
  x[n / 2] = 1 + 0x1p-11F;
  x[n * 3 / 4] = 1 + 0x3p-11F;
  std::vector<std::uint16_t> bf16(n), f16(n);
  kernels().narrow(Element::bf16, x.data(), n, bf16.data());
  kernels().narrow(Element::f16, x.data(), n, f16.data());
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(bf16[i] == ferrule::Bf16::store(x[i]));
    CHECK(f16[i] == ferrule::F16::store(x[i]));
  }
  for (std::uint16_t& each : f16) {
    if ((each & 0x7c00) == 0x7c00) each = 0x7bff;  // infinity is near to nothing
  }
  std::vector<float> wide(n, 1), half(n, 1);
  kernels().add_narrow(Element::bf16, bf16.data(), n, 0.5F, wide.data());
  kernels().add_narrow(Element::f16, f16.data(), n, 0.5F, half.data());
  for (std::size_t i = 0; i < n; ++i) {
    const double a = 0.5 * ferrule::Bf16::load(bf16[i]);
    const double b = 0.5 * ferrule::F16::load(f16[i]);
    near(wide[i], 1 + a, kEpsilon * (1 + std::abs(a)), "add bfloat16");
    near(half[i], 1 + b, kEpsilon * (1 + std::abs(b)), "add float16");
  }
}

struct Attention {
  Cached cached;
  std::size_t count;
  std::size_t width;
  std::size_t value_width;
  float softcap;
  std::int64_t window;
  bool sinks;
  std::size_t ranks = 2;
};

// Pages of keys, or of values, of `width` numbers.
class Pages {
 public:
  Pages(Cached cached, std::size_t pages, std::size_t width, bool keys)
      : cached_(cached), width_(width), keys_(keys), groups_((width + kCacheGroup - 1) / kCacheGroup) {
    const std::size_t row = has_codes(cached)
                                ? groups_ * (kCacheGroup * static_cast<std::size_t>(code_bits(cached)) / 8 + 2)
                                : width * element_bytes(element_of(cached));
    page_bytes_ = kPageTokens * row;
    bytes_.resize(pages * page_bytes_);
    for (std::size_t i = 0; i < pages; ++i) starts_.push_back(bytes_.data() + i * page_bytes_);
  }
  // The numbers of a token.
  void set(std::size_t token, const std::vector<float>& numbers) {
    for (std::size_t k = 0; k < numbers.size(); k += has_codes(cached_) ? kCacheGroup : 1) {
      if (!has_codes(cached_)) {
        kernels().narrow(element_of(cached_), &numbers[k], 1, plain(token, k));
        continue;
      }
      float some[kCacheGroup] = {};
      std::copy_n(&numbers[k], std::min(kCacheGroup, numbers.size() - k), some);
      std::int8_t codes[kCacheGroup];
      const std::uint16_t scale = std::isnan(some[0]) ? 0x7e00 : kernels().encode(some, code_bits(cached_), codes);
      std::memcpy(scale_at(token, k / kCacheGroup), &scale, sizeof scale);
      for (std::size_t i = 0; i < kCacheGroup; ++i) {
        if (cached_ == Cached::int8) {
          *code_at(token, k + i) = static_cast<std::uint8_t>(codes[i]);
        } else if (i < 16) {
          *code_at(token, k + i) = static_cast<std::uint8_t>((codes[i] + 8) | (codes[i + 16] + 8) << 4);
        }
      }
    }
  }
  double get(std::size_t token, std::size_t k) {
    if (!has_codes(cached_)) {
      float value = 0;
      kernels().add_narrow(element_of(cached_), plain(token, k), 1, 1, &value);
      return value;
    }
    std::uint16_t scale;
    std::memcpy(&scale, scale_at(token, k / kCacheGroup), sizeof scale);
    const std::uint8_t code = *code_at(token, k);
    if (cached_ == Cached::int8) return static_cast<std::int8_t>(code) * static_cast<double>(ferrule::F16::load(scale));
    return ((k % kCacheGroup < 16 ? code & 15 : code >> 4) - 8) * static_cast<double>(ferrule::F16::load(scale));
  }
  const std::uint8_t* const* starts() const { return starts_.data(); }

 private:
  std::uint8_t* page(std::size_t token) { return bytes_.data() + token / kPageTokens * page_bytes_; }
  std::uint8_t* plain(std::size_t token, std::size_t k) {
    const std::size_t lane = token % kPageTokens;
    std::size_t place = lane * width_ + k;
    if (keys_) place = cached_ == Cached::bf16 ? k / 2 * 2 * kPageTokens + lane * 2 + k % 2 : k * kPageTokens + lane;
    return page(token) + place * element_bytes(element_of(cached_));
  }
  std::uint8_t* code_at(std::size_t token, std::size_t k) {
    const std::size_t lane = token % kPageTokens;
    const std::size_t each = kCacheGroup * static_cast<std::size_t>(code_bits(cached_)) / 8;
    const std::size_t place = k / kCacheGroup * each + k % kCacheGroup % each;
    return page(token) + (keys_ ? place * kPageTokens + lane : lane * groups_ * each + place);
  }
  std::uint8_t* scale_at(std::size_t token, std::size_t group) {
    const std::size_t lane = token % kPageTokens;
    std::uint8_t* const scales = page(token) + page_bytes_ - 2 * kPageTokens * groups_;
    return scales + 2 * (keys_ ? group * kPageTokens + lane : lane * groups_ + group);
  }

  Cached cached_;
  std::size_t width_;
  bool keys_;
  std::size_t groups_;
  std::size_t page_bytes_;
  std::vector<std::uint8_t> bytes_;
  std::vector<const std::uint8_t*> starts_;
};

// Codes are nearest to the numbers, and the number that is farthest from zero has its own.
void check_encode(int bits) {
  for (int turn = 0; turn < 100; ++turn) {
    std::vector<float> x = normal(kCacheGroup);
    if (turn == 0) std::ranges::fill(x, 0.0F);
    for (float& each : x) each = std::ldexp(each, turn % 20 - 10);
    std::int8_t codes[kCacheGroup];
    const double scale = ferrule::F16::load(kernels().encode(x.data(), bits, codes));
    const int lowest = -(1 << (bits - 1));
    const double most = std::abs(*std::ranges::max_element(x, {}, [](float each) { return std::abs(each); }));
    near(static_cast<float>(std::abs(scale) * -lowest), most, most * 0x1p-11 - lowest * 0x1p-25, "scale");
    for (std::size_t i = 0; i < kCacheGroup; ++i) {
      CHECK(codes[i] >= lowest && codes[i] < -lowest);
      const double wanted = scale == 0 ? 0 : std::clamp(std::nearbyint(x[i] / scale), 1.0 * lowest, -1.0 - lowest);
      CHECK(std::abs(codes[i] - wanted) <= (std::abs(std::abs(x[i] / scale - wanted) - 0.5) < 1e-4 ? 1 : 0));
    }
  }
}

// The results of a tile where each of `ranks` has a stripe of the pages, merged.
std::vector<std::vector<float>> in_stripes(AttentionTile tile, std::size_t ranks, std::size_t pages) {
  struct Partial {
    std::vector<std::vector<float>> results;
    std::vector<float> highest, sums;
  };
  std::vector<Partial> partial;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<const std::uint8_t*> keys, values;
    for (std::size_t page = rank; page < pages; page += ranks) {
      keys.push_back(tile.keys[page]);
      values.push_back(tile.values[page]);
    }
    Partial& found = partial.emplace_back();
    found.results.assign(tile.count, std::vector<float>(tile.value_width, NAN));
    found.highest.resize(tile.count);
    found.sums.resize(tile.count);
    std::vector<float*> out;
    for (std::vector<float>& row : found.results) out.push_back(row.data());
    AttentionTile part = tile;
    part.out = out.data();
    part.keys = keys.data();
    part.values = values.data();
    part.first_page = rank;
    part.page_step = ranks;
    part.highest = found.highest.data();
    part.sums = found.sums.data();
    if (rank > 0) part.sinks = nullptr;
    kernels().attend(part);
  }
  std::vector<std::vector<float>> merged(tile.count, std::vector<float>(tile.value_width));
  for (std::size_t t = 0; t < tile.count; ++t) {
    float top = partial[0].highest[t];
    float total = 0;
    for (const Partial& each : partial) top = std::max(top, each.highest[t]);
    for (const Partial& each : partial) total += each.sums[t] * std::exp(each.highest[t] - top);
    for (const Partial& each : partial) {
      const float weight = each.sums[t] * std::exp(each.highest[t] - top) / total;
      for (std::size_t k = 0; k < tile.value_width; ++k) merged[t][k] += weight * each.results[t][k];
    }
  }
  return merged;
}

void check_attention(const Attention& given) {
  constexpr std::size_t kPages = 11;
  constexpr std::int64_t kLast = 169;  // position of the last query: not all of the last page is there
  const Cached cached = given.cached;
  const std::size_t count = given.count, width = given.width, value_width = given.value_width;
  const std::int64_t window = given.window;
  Pages keys(cached, kPages, width, true), values(cached, kPages, value_width, false);
  for (std::size_t token = 0; token < kPages * kPageTokens; ++token) {
    const bool there = static_cast<std::int64_t>(token) <= kLast;
    keys.set(token, there ? normal(width) : std::vector<float>(width, NAN));
    values.set(token, there ? normal(value_width) : std::vector<float>(value_width, NAN));
  }
  std::vector<std::vector<float>> queries, out(count, std::vector<float>(value_width));
  std::vector<const float*> from;
  std::vector<float*> to;
  std::vector<std::int64_t> positions;
  for (std::size_t t = 0; t < count; ++t) queries.push_back(normal(width));
  for (std::size_t t = 0; t < count; ++t) {
    from.push_back(queries[t].data());
    to.push_back(out[t].data());
    positions.push_back(kLast - static_cast<std::int64_t>(count - 1 - t) / 2);
  }
  const std::vector<float> sink = normal(count);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  AttentionTile tile{count,
                     width,
                     value_width,
                     from.data(),
                     to.data(),
                     positions.data(),
                     given.sinks ? sink.data() : nullptr,
                     scale,
                     given.softcap,
                     window,
                     cached,
                     keys.starts(),
                     values.starts()};
  kernels().attend(tile);
  const std::vector<std::vector<float>> merged = in_stripes(tile, given.ranks, kPages);
  for (std::size_t t = 0; t < count; ++t) {
    std::vector<double> sums(value_width);
    double total = given.sinks ? std::exp(static_cast<double>(sink[t])) : 0;
    double most = 0;
    const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, positions[t] - window + 1);
    for (auto token = static_cast<std::size_t>(first); token <= static_cast<std::size_t>(positions[t]); ++token) {
      double logit = 0;
      double size = 0;
      for (std::size_t k = 0; k < width; ++k) {
        const bool pairs = cached == Cached::bf16 && testing::bf16_pairs();
        const double query = pairs ? testing::to_bf16(queries[t][k]) : queries[t][k];
        const double product = query * keys.get(token, k) * scale;
        logit += product;
        size += std::abs(product);
      }
      if (given.softcap > 0) logit = std::tanh(logit / given.softcap) * given.softcap;
      const double weight = std::exp(logit);
      total += weight;
      most = std::max(most, size);
      for (std::size_t k = 0; k < value_width; ++k) {
        sums[k] += weight * values.get(token, k);
      }
    }
    // An error in a logit is one of its weight, and values are at most 5 or so.
    const double apart = 5 * kEpsilon * (static_cast<double>(2 * width) * most + 64 + given.softcap);
    for (std::size_t k = 0; k < value_width; ++k) {
      near(out[t][k], sums[k] / total, apart, "attention");
      near(merged[t][k], sums[k] / total, apart, "attention in stripes");
    }
    std::vector<float> alone(value_width);  // the same to the last bit, whatever else is in the tile
    float* const to_alone = alone.data();
    kernels().attend({1, width, value_width, &from[t], &to_alone, &positions[t], given.sinks ? &sink[t] : nullptr,
                      scale, given.softcap, window, cached, keys.starts(), values.starts()});
    CHECK(alone == out[t]);
  }
}

}  // namespace

int main(int count, char** arguments) {
  testing::choose_instructions(count, arguments);
  for (const std::size_t n : kLengths) {
    for (const bool mean : {false, true}) {
      for (const bool whole : {false, true}) check_norm(n, mean, whole);
    }
    check_gate(n);
    for (const bool interleaved : {false, true}) check_rotate(n, interleaved);
    check_add(n);
    check_exponentials(n);
    check_narrow(n);
  }
  for (const int bits : {8, 4}) check_encode(bits);
  for (const Cached cached : {Cached::bf16, Cached::f16, Cached::f32, Cached::int8, Cached::int4}) {
    for (const std::size_t queries : {1, 2, 3, 4, 5, 6, 7, 8, 11, 40}) {
      check_attention({cached, queries, 64, 64, 0, 0, false});
      check_attention({cached, queries, 34, has_codes(cached) ? 96U : 48U, 20, 0, true, 3});
      check_attention({cached, queries, 70, has_codes(cached) ? 32U : 16U, 0, 20, true});
      check_attention({cached, queries, 64, has_codes(cached) ? 160U : 80U, 30, 5, false});
    }
  }
}
