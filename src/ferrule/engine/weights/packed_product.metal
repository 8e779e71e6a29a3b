// Products of packed weights on Apple's GPUs: what triton_product.py is on others, for rows that are few.
//
// metal_product.py puts before this text the standard library and, for each form in which a matrix is held, the macros
//   FOUR_BITS: two codes to a byte. TABLE: codes are places in a table, else integers of which ZERO means zero.
//   GROUP: columns that share a scale (0: a whole row). SCALE, OFFSET: types of scales and offsets.
//   KIND: 0 without offsets, 1 with offsets, 2 where offsets are minus the scale times a whole number.
//   NESTED: scales and offsets are multiples of a number for each SUPER_GROUP columns.
//
// A simdgroup computes OUTPUTS outputs of ROWS rows: its lanes take CHUNK columns each, side by side, so that it reads
// codes in one run; sums of the lanes come last. All sums are float32.

using namespace metal;

constant constexpr int LANES = 32, CHUNK = 8, OUTPUTS = 4, SIMDGROUPS = 2;
constant constexpr int WIDTH = GROUP ? GROUP : 1;

// CHUNK codes from `codes` on, of which only the first `many` are there. `whole`: they lie on a border of 4 bytes, and
// are all there. What is not there becomes what the code 0 stands for.
inline void unpack(
    device const uint8_t* codes, device const float* table, int many, bool whole, thread float* values
) {
    uint words[2] = {0, 0};
    if (whole) {
        device const uint* read = reinterpret_cast<device const uint*>(codes);
        words[0] = read[0];
        if (!FOUR_BITS) words[1] = read[1];
    } else {
        const int bytes = FOUR_BITS ? many / 2 : many;
        for (int i = 0; i < bytes; ++i) words[i / 4] |= uint(codes[i]) << (8 * (i % 4));
    }
    for (int i = 0; i < CHUNK; ++i) {
        const uint code = FOUR_BITS ? (words[0] >> (4 * i)) & 15 : (words[i / 4] >> (8 * (i % 4))) & 255;
        values[i] = TABLE ? table[code] : float(code) - float(ZERO);
    }
}

template <typename T, int ROWS>
void product(
    device const T* x, device const uint8_t* codes, device const float* table, device const SCALE* scales,
    device const OFFSET* offsets, device const float* supers, device const float* super_offsets, device T* y,
    device const int* blocks, long rows, long outputs, long columns, bool stack, uint2 place, uint simdgroup, uint lane
) {
    long first = long(place.y) * ROWS, end = rows, matrix = 0;
    if (stack) {
        matrix = blocks[place.y * 3];
        first = blocks[place.y * 3 + 1];
        end = blocks[place.y * 3 + 2];
    }
    const long output = (long(place.x) * SIMDGROUPS + simdgroup) * OUTPUTS;
    if (first >= end || output >= outputs) return;  // all lanes alike
    const long in_row = GROUP ? columns / WIDTH : 1;
    const bool even = columns % CHUNK == 0;
    float totals[OUTPUTS][ROWS] = {};
    for (long column = lane * CHUNK; column < columns; column += LANES * CHUNK) {
        const int many = int(min(long(CHUNK), columns - column));
        float given[ROWS][CHUNK], sums[ROWS];
        for (int m = 0; m < ROWS; ++m) {
            sums[m] = 0;
            for (int i = 0; i < CHUNK; ++i) {
                const bool there = first + m < end && i < many;
                given[m][i] = there ? float(x[(first + m) * columns + column + i]) : 0.0f;
                sums[m] += given[m][i];
            }
        }
        const long group = GROUP ? column / WIDTH : 0;
        for (int n = 0; n < OUTPUTS; ++n) {
            if (output + n >= outputs) break;
            const long row = matrix * outputs + output + n;
            float values[CHUNK];
            unpack(codes + (row * columns + column) / (FOUR_BITS ? 2 : 1), table, many, even, values);
            float scale = float(scales[row * in_row + group]), offset = 0;
            const long above = NESTED ? row * (columns / SUPER_GROUP) + column / SUPER_GROUP : 0;
            if (NESTED) scale *= supers[above];
            if (KIND) offset = float(offsets[row * in_row + group]);
            if (KIND == 1 && NESTED) offset *= super_offsets[above];
            if (KIND == 2) offset *= -scale;
            for (int m = 0; m < ROWS; ++m) {
                float sum = 0;
                for (int i = 0; i < CHUNK; ++i) sum += values[i] * given[m][i];
                totals[n][m] += scale * sum;
                if (KIND) totals[n][m] += offset * sums[m];
            }
        }
    }
    for (int n = 0; n < OUTPUTS; ++n) {
        for (int m = 0; m < ROWS; ++m) {
            const float total = simd_sum(totals[n][m]);
            if (lane == 0 && output + n < outputs && first + m < end) {
                y[(first + m) * outputs + output + n] = T(total);
            }
        }
    }
}

// By the type of activations and the rows of a block; whole numbers come from Python as 64 bits.
#define PRODUCT(NAME, T, ROWS)                                                                                         \
    kernel void NAME(                                                                                                  \
        device const T* x, device const uint8_t* codes, device const float* table, device const SCALE* scales,         \
        device const OFFSET* offsets, device const float* supers, device const float* super_offsets, device T* y,      \
        device const int* blocks, constant long& rows, constant long& outputs, constant long& columns,                 \
        constant long& stack, uint2 place [[threadgroup_position_in_grid]],                                            \
        uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]                     \
    ) {                                                                                                                \
        product<T, ROWS>(                                                                                              \
            x, codes, table, scales, offsets, supers, super_offsets, y, blocks, rows, outputs, columns, stack != 0,    \
            place, simdgroup, lane                                                                                     \
        );                                                                                                             \
    }

PRODUCT(float32_1, float, 1)
PRODUCT(float32_4, float, 4)
PRODUCT(float32_8, float, 8)
PRODUCT(float16_1, half, 1)
PRODUCT(float16_4, half, 4)
PRODUCT(float16_8, half, 8)
PRODUCT(bfloat16_1, bfloat, 1)
PRODUCT(bfloat16_4, bfloat, 4)
PRODUCT(bfloat16_8, bfloat, 8)
