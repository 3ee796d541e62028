// Moving averages of queries, turned back to where they were before RoPE.

#pragma once

#include <cstdint>

#include "vectors.h"

namespace growpage {

// Takes queries, in bfloat16 or float32, into the averages of head after head.
struct Averager {
    int64_t count, dim;    // a dimension is turned together with the one half of dim further
    const float* angles;   // [count, 2, dim / 2] cosines and sines by which they are turned back
    const float* weights;  // [2, count] what each adds to the two averages
    const float* kept;     // [2] what is left of these

    // The queries of one head [count], and its averages.
    template <typename Query>
    void take_in(const Query* const* queries, int64_t offset, float* one, float* two) const {
        const int64_t half = dim / 2;
        for (int64_t at = 0; at < half; at += WIDTH) {
            Floats one_low = kept[0] * read(one + at);
            Floats one_high = kept[0] * read(one + at + half);
            Floats two_low = kept[1] * read(two + at);
            Floats two_high = kept[1] * read(two + at + half);
            for (int64_t i = 0; i < count; ++i) {
                const Floats cos = read(angles + i * dim + at);
                const Floats sin = read(angles + i * dim + half + at);
                const Floats low = read(queries[i] + offset + at);
                const Floats high = read(queries[i] + offset + half + at);
                const Floats plain_low = low * cos + high * sin;
                const Floats plain_high = high * cos - low * sin;
                one_low += weights[i] * plain_low;
                one_high += weights[i] * plain_high;
                two_low += weights[count + i] * plain_low;
                two_high += weights[count + i] * plain_high;
            }
            write(one + at, one_low);
            write(one + at + half, one_high);
            write(two + at, two_low);
            write(two + at + half, two_high);
        }
    }
};

}  // namespace growpage
