// Vectors of as many numbers as the processor works on at once.

#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace growpage {

#if defined(__AVX512F__)
constexpr int64_t VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int64_t VECTOR_BYTES = 32;
#else
constexpr int64_t VECTOR_BYTES = 16;
#endif

using Floats [[gnu::vector_size(VECTOR_BYTES)]] = float;
using Integers [[gnu::vector_size(VECTOR_BYTES)]] = int32_t;
using Words [[gnu::vector_size(VECTOR_BYTES)]] = uint32_t;
using Halves [[gnu::vector_size(VECTOR_BYTES / 2)]] = uint16_t;

constexpr int64_t WIDTH = VECTOR_BYTES / sizeof(float);  // numbers in a vector: 4, 8 or 16

// Of the polynomial for 2 to a number from -1/2 to 1/2 with the least largest error, the highest
// power first.
constexpr float POWER_OF_TWO[] = {1.326472712e-3f, 9.671512645e-3f, 5.550733743e-2f,
                                  2.402224209e-1f, 6.931469776e-1f, 1.0f};
constexpr float LOG2_E = 1.44269504f;

inline Floats read(const float* from) {
    Floats floats;
    std::memcpy(&floats, from, sizeof floats);
    return floats;
}

// Of bfloat16 numbers.
inline Floats read(const uint16_t* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
#if defined(__AVX2__) && !defined(__AVX512F__)
    // GCC widens each half of the vector by itself.
    const auto words = (Words)_mm256_cvtepu16_epi32((__m128i)halves);
#else
    const auto words = __builtin_convertvector(halves, Words);
#endif
    return reinterpret_cast<Floats>(words << 16);
}

inline void write(float* to, Floats floats) { std::memcpy(to, &floats, sizeof floats); }

inline float sum_of(Floats floats) {
    float sum = 0;
    for (int64_t lane = 0; lane < WIDTH; ++lane) sum += floats[lane];
    return sum;
}

}  // namespace growpage
