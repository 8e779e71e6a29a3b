// Loops over rows of activations: norms, rotary positions, gates, conversions; and attention over pages of a cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule {

enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, relu, gpt_oss };
enum class Element : std::uint8_t { bf16, f16, f32 };

constexpr std::size_t element_bytes(Element element) { return element == Element::f32 ? 4 : 2; }

// How a cache keeps keys and values. Of the last two each group of 32 numbers of a head has codes of 8 or 4 bits and a
// float16 scale.
enum class Cached : std::uint8_t { bf16, f16, f32, int8, int4 };

constexpr bool has_codes(Cached cached) { return cached == Cached::int8 || cached == Cached::int4; }
constexpr int code_bits(Cached cached) { return cached == Cached::int8 ? 8 : 4; }
constexpr Element element_of(Cached cached) { return static_cast<Element>(cached); }  // of those without codes

constexpr std::size_t kPageTokens = 16;
constexpr std::size_t kCacheGroup = 32;

// One tile of queries that share a key/value head: all of one sequence, `count` (at most kMostQueries) of them.
struct AttentionTile {
  std::size_t count = 0;
  std::size_t width = 0;        // of a key, even
  std::size_t value_width = 0;  // a multiple of 16, with codes of kCacheGroup
  const float* const* queries = nullptr;
  float* const* out = nullptr;
  const std::int64_t* positions = nullptr;  // of each query: it sees tokens up to its own
  const float* sinks = nullptr;             // a logit for each query that takes part in the sum only; or nullptr
  float scale = 1;
  float softcap = 0;        // 0: none
  std::int64_t window = 0;  // how many tokens back a query sees, its own included; 0: all
  Cached cached = Cached::bf16;
  // The pages of this key/value head, by the token's position / 16: keys (width / 2, 16, 2) as bfloat16, otherwise
  // (width, 16); values (16, value width). With codes the width of keys is filled up to whole groups, and scales
  // follow: those of keys (groups, 16), those of values (16, groups). Codes of 4 bits: number i of a group shares a
  // byte with i + 16, which has the higher half; they are 8 more than what they stand for.
  const std::uint8_t* const* keys = nullptr;
  const std::uint8_t* const* values = nullptr;
  // Those pages are numbers first_page, first_page + page_step and so on; queries see no others.
  std::size_t first_page = 0, page_step = 1;
  // Of each query the highest logit, and the sum of e to the power of each less that, sinks included; or nullptr. Where
  // it sees nothing the sum is 0, and so are the results.
  float* highest = nullptr;
  float* sums = nullptr;
};
constexpr std::size_t kMostQueries = 40;
constexpr std::size_t kMostWidth = 640;  // latents of 512 and their rotary part

struct RowTable {
  // y = x / rms(x) * weight; with `mean`, x less its mean before that, and bias (may be nullptr) added.
  void (*norm)(const float* x, std::size_t n, const float* weight, const float* bias, float eps, bool mean, float* y);
  // y = act(gate) * up; without `up`, act(gate).
  void (*gate)(Activation kind, const float* gate, const float* up, std::size_t n, float* y);
  // Turn the first 2 * `half` numbers by the angles of cos and sin (half each): number i with i + half, or
  // (interleaved) 2 i with 2 i + 1.
  void (*rotate)(float* x, std::size_t half, const float* cos, const float* sin, bool interleaved);
  void (*add)(float* y, const float* x, std::size_t n, float factor);  // y += factor * x
  void (*narrow)(Element to, const float* x, std::size_t n, void* y);
  void (*add_narrow)(Element from, const void* x, std::size_t n, float factor, float* y);  // y += factor * x
  float (*highest)(const float* x, std::size_t n);  // what is no number is passed over; minus infinity of nothing
  // y = e to the power of (x - top) * factor, at least e^-87; gives their sum.
  float (*exponentials)(const float* x, std::size_t n, float top, float factor, float* y);
  // Codes for 32 numbers, which times the scale, a float16 that is given, are nearest to them. The number that is
  // farthest from zero has the lowest code, of which there is one more than of those above zero.
  std::uint16_t (*encode)(const float* x, int bits, std::int8_t* codes);
  void (*attend)(const AttentionTile& tile);
};

const RowTable& row_kernels();

}  // namespace ferrule
