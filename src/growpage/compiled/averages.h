// Moving averages of queries, rotated back to where they were before RoPE.

#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace growpage {

// Adds queries of one head to its averages, or of many heads one after the other.
class Averager {
   public:
    // Angles [count, 2, rotated / 2] are the cosines and sines by which queries are turned back.
    Averager(const float* angles, int64_t count, int64_t dim, int64_t rotated, bool neox)
        : angles_(angles), count_(count), dim_(dim), half_(rotated / 2), neox_(neox), plain_(dim) {}

    // Turn to averages [2], `apart` numbers from each other: kept [2] times themselves, and
    // weights [2, count] times queries [count] in bfloat16.
    void take_in(const uint16_t* const* queries, int64_t offset, const float* weights,
                 const float* kept, float* averages, int64_t apart) {
        float* __restrict one = averages;
        float* __restrict two = averages + apart;
#pragma omp simd
        for (int64_t i = 0; i < dim_; ++i) {
            one[i] *= kept[0];
            two[i] *= kept[1];
        }
        for (int64_t query = 0; query < count_; ++query) {
            turn_back(queries[query] + offset, angles_ + query * 2 * half_);
            const float a = weights[query], b = weights[count_ + query];
            const float* __restrict plain = plain_.data();
#pragma omp simd
            for (int64_t i = 0; i < dim_; ++i) {
                one[i] += a * plain[i];
                two[i] += b * plain[i];
            }
        }
    }

   private:
    static float widened(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

    void turn_back(const uint16_t* query, const float* angles) {
        const float *cos = angles, *sin = angles + half_;
        float* __restrict plain = plain_.data();
        if (neox_) {
#pragma omp simd
            for (int64_t i = 0; i < half_; ++i) {
                const float a = widened(query[i]), b = widened(query[i + half_]);
                plain[i] = a * cos[i] + b * sin[i];
                plain[i + half_] = b * cos[i] - a * sin[i];
            }
        } else {
            for (int64_t i = 0; i < half_; ++i) {
                const float a = widened(query[2 * i]), b = widened(query[2 * i + 1]);
                plain[2 * i] = a * cos[i] + b * sin[i];
                plain[2 * i + 1] = b * cos[i] - a * sin[i];
            }
        }
        for (int64_t i = 2 * half_; i < dim_; ++i) plain[i] = widened(query[i]);
    }

    const float* angles_;
    int64_t count_, dim_, half_;
    bool neox_;
    std::vector<float> plain_;
};

}  // namespace growpage
