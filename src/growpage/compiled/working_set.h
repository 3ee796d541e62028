// How many of the largest weights hold a mass, and what the largest few leave.

#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "aligned.h"

namespace growpage {

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each choice of 8 lanes, the order in which those chosen come first.
struct Parting {
    uint8_t orders[256][8]{};

    constexpr Parting() {
        for (int lanes = 0; lanes < 256; ++lanes) {
            int place = 0;
            for (const bool chosen : {true, false}) {
                for (int lane = 0; lane < 8; ++lane) {
                    if ((lanes >> lane & 1) == chosen) orders[lanes][place++] = lane;
                }
            }
        }
    }

    __m256i of(int lanes) const {
        return _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(orders[lanes])));
    }
};

constexpr Parting PARTING;
#endif

// Weights are parted in two by a number between the least and the largest, and only the parts in
// which an answer lies are parted further. Sums are in double.
class WorkingSet {
   public:
    explicit WorkingSet(int64_t tokens) : buffers_{spacious(tokens), spacious(tokens)} {}

    // Of the weights of a row, none negative; lost [questions] is what the largest
    // capacities [questions] leave.
    void count(const float* weights, int64_t tokens, double mass, const int64_t* capacities,
               int64_t questions, int64_t* needed, double* lost) {
        // The bits of numbers from 0 on are in their order, those of what is no number above all.
        constexpr int32_t INFINITE = 0x7F800000, UNSIGNED = 0x7FFFFFFF;
        int32_t low = UNSIGNED, high = 0;
#pragma omp simd reduction(min : low) reduction(max : high)
        for (int64_t i = 0; i < tokens; ++i) {
            const int32_t bits = std::bit_cast<int32_t>(weights[i]) & UNSIGNED;
            low = std::min(low, bits);
            high = std::max(high, bits);
        }
        if (high > INFINITE) {
            *needed = 1;
            std::fill_n(lost, questions, std::numeric_limits<double>::quiet_NaN());
            return;
        }
        asked_ = {mass, capacities, needed, lost};
        order_.resize(questions + 1);
        for (int64_t question = 0; question <= questions; ++question) order_[question] = question;
        const auto least = std::bit_cast<float>(low), most = std::bit_cast<float>(high);
        int64_t* const first = order_.data();
        answer({weights, tokens, least, most, 0, 0}, 0, first, first + order_.size());
    }

   private:
    static constexpr int64_t FEW = 16;

    struct Asked {
        double mass;
        const int64_t* capacities;
        int64_t* needed;
        double* lost;
    };

    // Some of the weights; all larger ones are so many and hold so much.
    struct Part {
        const float* weights;
        int64_t size;
        float low, high;
        int64_t taken;
        double held;
    };

    static Aligned<float> spacious(int64_t tokens) { return Aligned<float>(tokens + FEW); }

    // Whether question 0, for the mass, or one for a capacity is answered by weights that are so
    // many and hold so much.
    bool enough(int64_t question, int64_t taken, double held) const {
        return question == 0 ? held >= asked_.mass : taken >= asked_.capacities[question - 1];
    }

    // Answer the questions from first to last, the answers of which lie in a part.
    void answer(const Part& part, int depth, int64_t* first, int64_t* last) {
        if (first == last) return;
        if (part.size <= FEW || part.low == part.high) {
            count_one_by_one(part, first, last);
            return;
        }
        const auto low = std::bit_cast<int32_t>(part.low), high = std::bit_cast<int32_t>(part.high);
        const auto limit = std::bit_cast<float>(low + (high - low) / 2);
        // Each part is read from one buffer and written to the same places of the other.
        Aligned<float>& into = buffers_[depth % 2];
        const int64_t at = depth == 0 ? 0 : part.weights - buffers_[(depth + 1) % 2].data();
        Part upper{into.data() + at, 0, part.high, part.high, part.taken, part.held};
        Part lower{nullptr, 0, part.low, part.low, 0, 0};
        const double sum = divide(part, limit, into.data() + at, upper, lower);
        lower.weights = into.data() + at + upper.size;
        lower.taken = part.taken + upper.size;
        lower.held = part.held + sum;
        int64_t* const middle = std::partition(first, last, [&](int64_t question) {
            return enough(question, lower.taken, lower.held);
        });
        answer(upper, depth + 1, first, middle);
        answer(lower, depth + 1, middle, last);
    }

#ifdef __AVX512F__
    // Write some lanes one behind the other; returns how many. Not by the instruction that does it
    // all: it takes several times as long.
    static int64_t append(float* to, __m512 weights, __mmask16 lanes) {
        const int count = std::popcount(static_cast<uint32_t>(lanes));
        _mm512_mask_storeu_ps(to, (1u << count) - 1, _mm512_maskz_compress_ps(lanes, weights));
        return count;
    }
#endif

    // Write the weights above the limit to the front, and the others behind them; returns the sum
    // of the former.
    static double divide(const Part& part, float limit, float* to, Part& upper, Part& lower) {
        float* front = to;
        float* back = to + part.size;
        double sum = 0;
#ifdef __AVX512F__
        const __m512 limits = _mm512_set1_ps(limit);
        __m512 least = _mm512_set1_ps(upper.high), most = _mm512_set1_ps(lower.low);
        __m512d sums = _mm512_setzero_pd(), others = sums;
        for (int64_t i = 0; i < part.size; i += 16) {
            const __mmask16 there = part.size - i >= 16 ? 0xFFFF : (1 << (part.size - i)) - 1;
            const __m512 weights = _mm512_maskz_loadu_ps(there, part.weights + i);
            const __mmask16 above = _mm512_mask_cmp_ps_mask(there, weights, limits, _CMP_GT_OQ);
            const __mmask16 below = there & ~above;
            front += append(front, weights, above);
            back -= std::popcount(static_cast<uint32_t>(below));
            append(back, weights, below);
            least = _mm512_mask_min_ps(least, above, least, weights);
            most = _mm512_mask_max_ps(most, below, most, weights);
            const __m512d one = _mm512_cvtps_pd(_mm512_castps512_ps256(weights));
            const __m512d two = _mm512_cvtps_pd(_mm256_castsi256_ps(
                _mm512_extracti64x4_epi64(_mm512_castps_si512(weights), 1)));
            sums = _mm512_mask_add_pd(sums, above, sums, one);
            others = _mm512_mask_add_pd(others, above >> 8, others, two);
        }
        upper.low = _mm512_reduce_min_ps(least);
        lower.high = _mm512_reduce_max_ps(most);
        sum = _mm512_reduce_add_pd(_mm512_add_pd(sums, others));
#else
        float least = upper.high, most = lower.low;
        int64_t rest = part.size;
#ifdef __AVX2__
        rest %= 8;  // first, so that what is free afterwards holds whole vectors
#endif
        for (int64_t i = 0; i < rest; ++i) {
            const float weight = part.weights[i];
            if (weight > limit) {
                *front++ = weight;
                least = std::min(least, weight);
                sum += weight;
            } else {
                *--back = weight;
                most = std::max(most, weight);
            }
        }
#ifdef __AVX2__
        const __m256 limits = _mm256_set1_ps(limit);
        __m256 leasts = _mm256_set1_ps(least), mosts = _mm256_set1_ps(most);
        __m256d sums = _mm256_setzero_pd(), others = sums;
        for (int64_t i = rest; i < part.size; i += 8) {
            const __m256 weights = _mm256_loadu_ps(part.weights + i);
            const __m256 above = _mm256_cmp_ps(weights, limits, _CMP_GT_OQ);
            const int lanes = _mm256_movemask_ps(above);
            // Written to both ends of what is free: each keeps the lanes that it is for.
            const __m256 parted = _mm256_permutevar8x32_ps(weights, PARTING.of(lanes));
            _mm256_storeu_ps(front, parted);
            _mm256_storeu_ps(back - 8, parted);
            const int count = std::popcount(static_cast<uint32_t>(lanes));
            front += count;
            back -= 8 - count;
            leasts = _mm256_min_ps(leasts, _mm256_blendv_ps(leasts, weights, above));
            mosts = _mm256_max_ps(mosts, _mm256_blendv_ps(weights, mosts, above));
            const __m256 summed = _mm256_and_ps(weights, above);
            sums = _mm256_add_pd(sums, _mm256_cvtps_pd(_mm256_castps256_ps128(summed)));
            others = _mm256_add_pd(others, _mm256_cvtps_pd(_mm256_extractf128_ps(summed, 1)));
        }
        float lanes_least[8], lanes_most[8];
        double lanes_sum[4];
        _mm256_storeu_ps(lanes_least, leasts);
        _mm256_storeu_ps(lanes_most, mosts);
        _mm256_storeu_pd(lanes_sum, _mm256_add_pd(sums, others));
        least = *std::min_element(lanes_least, lanes_least + 8);
        most = *std::max_element(lanes_most, lanes_most + 8);
        for (const double lane : lanes_sum) sum += lane;
#endif
        upper.low = least;
        lower.high = most;
#endif
        upper.size = front - to;
        lower.size = part.size - upper.size;
        return sum;
    }

    // Largest first, each question from where the one before it ended or from the start.
    void count_one_by_one(const Part& part, const int64_t* first, const int64_t* last) {
        float sorted[FEW];
        const bool equal = part.low == part.high;
        if (!equal) {
            std::copy_n(part.weights, part.size, sorted);
            std::sort(sorted, sorted + part.size, std::greater<float>());
        }
        for (; first != last; ++first) {
            int64_t taken = part.taken;
            double held = part.held;
            for (int64_t i = 0; i < part.size && !enough(*first, taken, held); ++i) {
                held += equal ? part.high : sorted[i];
                ++taken;
            }
            if (*first == 0) *asked_.needed = std::max<int64_t>(taken, 1);
            else asked_.lost[*first - 1] = std::max(1 - held, 0.0);
        }
    }

    Asked asked_{};
    std::vector<int64_t> order_;
    Aligned<float> buffers_[2];
};

}  // namespace growpage
