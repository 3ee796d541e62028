// Moving averages of queries, turned back to where they were before RoPE.

#pragma once

#include <cstdint>
#include <cstring>

namespace growpage {

constexpr int64_t TOGETHER = 16;  // dimensions that are worked on at once
using Floats [[gnu::vector_size(64)]] = float;
using Words [[gnu::vector_size(64)]] = uint32_t;
using Halves [[gnu::vector_size(32)]] = uint16_t;

inline Floats read_floats(const float* from) {
    Floats floats;
    std::memcpy(&floats, from, sizeof floats);
    return floats;
}

// Of bfloat16 numbers.
inline Floats read_halves(const uint16_t* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}

// Takes queries in bfloat16 into the averages of head after head.
struct Averager {
    int64_t count, dim;    // a dimension is turned together with the one half of dim further
    const float* angles;   // [count, 2, dim / 2] cosines and sines by which they are turned back
    const float* weights;  // [2, count] what each adds to the two averages
    const float* kept;     // [2] what is left of these

    // The queries of one head [count], and its averages.
    void take_in(const uint16_t* const* queries, int64_t offset, float* one, float* two) const {
        const int64_t half = dim / 2;
        for (int64_t at = 0; at < half; at += TOGETHER) {
            Floats one_low = kept[0] * read_floats(one + at);
            Floats one_high = kept[0] * read_floats(one + at + half);
            Floats two_low = kept[1] * read_floats(two + at);
            Floats two_high = kept[1] * read_floats(two + at + half);
            for (int64_t i = 0; i < count; ++i) {
                const Floats cos = read_floats(angles + i * dim + at);
                const Floats sin = read_floats(angles + i * dim + half + at);
                const Floats low = read_halves(queries[i] + offset + at);
                const Floats high = read_halves(queries[i] + offset + half + at);
                const Floats plain_low = low * cos + high * sin;
                const Floats plain_high = high * cos - low * sin;
                one_low += weights[i] * plain_low;
                one_high += weights[i] * plain_high;
                two_low += weights[count + i] * plain_low;
                two_high += weights[count + i] * plain_high;
            }
            std::memcpy(one + at, &one_low, sizeof one_low);
            std::memcpy(one + at + half, &one_high, sizeof one_high);
            std::memcpy(two + at, &two_low, sizeof two_low);
            std::memcpy(two + at + half, &two_high, sizeof two_high);
        }
    }
};

}  // namespace growpage
