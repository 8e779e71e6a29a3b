// Plain numbers as codes in groups of 32 with a scale of 16 bits each, as GGUF's Q8_0 and Q4_0 have them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/rows.h"

namespace ferrule {

// `groups` times 32 numbers, of 8 bits (zero is 128) or 4 (zero is 8). `scales`: as float16 holds them.
void quantise(Element element, const void* numbers, std::size_t groups, int bits, std::uint8_t* codes, float* scales);

}  // namespace ferrule
