// Which tokens survive an eviction.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "aligned.h"
#include "vectors.h"

namespace growpage {

// Chooses the survivors of one row of scores after the other. Of equal scores the earlier token
// survives; a score that is no number is the lowest.
//
// Ranks are compared instead of scores: integers in the same order. The lowest rank that survives
// is found by halving the range of ranks, counting how many lie in its upper half.
class Selector {
   public:
    // The quota must fit into keep, beside the prefix and the recent tokens.
    Selector(int64_t tokens, int64_t keep, int64_t prefix, int64_t recent, int64_t page,
             int64_t quota)
        : tokens_(tokens),
          keep_(keep),
          prefix_(std::min(prefix, tokens)),
          recent_(std::min(recent, tokens)),
          page_(page),
          quota_(quota),
          ranks_(tokens + MOST_COMPARED),
          kept_(keep + 1) {}

    // Scores of tokens before this one are not looked at: their pages are kept whole.
    int64_t first_scored() const { return prefix_ / page_ * page_; }

    // The survivors of scores [tokens], ascending: [keep], until the next call.
    const int32_t* choose(const float* scores) {
        for (int64_t i = 0; i < tokens_; ++i) ranks_[i] = rank_of(scores[i]);
        if (quota_ > 0) {
            for (int64_t first = first_scored(); first < tokens_; first += page_) {
                choose_of_page(ranks_.data() + first, std::min(page_, tokens_ - first));
            }
        }
        std::fill_n(ranks_.begin(), prefix_, CHOSEN);
        std::fill_n(ranks_.begin() + tokens_ - recent_, recent_, CHOSEN);
        const int32_t least = choose_best(ranks_.data(), tokens_, keep_);
        int64_t count = 0;
        for (int64_t i = 0; i < tokens_; ++i) {
            kept_[count] = static_cast<int32_t>(i);
            count += ranks_[i] >= least;
        }
        return kept_.data();
    }

   private:
    static constexpr int32_t CHOSEN = std::numeric_limits<int32_t>::max();
    static constexpr int64_t MOST_COMPARED = 64;

    // Larger numbers have larger ranks, none as large as CHOSEN; NaN has the smallest.
    static int32_t rank_of(float score) {
        const auto bits = std::bit_cast<int32_t>(score);
        const int32_t rank = bits ^ ((bits >> 31) & 0x7FFFFFFF);
        return score != score ? std::numeric_limits<int32_t>::min() : rank;
    }

    static int64_t count_from(const int32_t* ranks, int64_t size, int32_t least) {
        int32_t count = 0;
#pragma omp simd reduction(+ : count)
        for (int64_t i = 0; i < size; ++i) count += ranks[i] >= least;
        return count;
    }

    // The least rank of the best ones, best of them at least 1. If there are others as good as the
    // last of these, the earlier ones are marked as chosen, and a higher rank is returned.
    static int32_t choose_best(int32_t* ranks, int64_t size, int64_t best) {
        int32_t low = CHOSEN, high = std::numeric_limits<int32_t>::min();
        int32_t chosen = 0;
#pragma omp simd reduction(min : low) reduction(max : high) reduction(+ : chosen)
        for (int64_t i = 0; i < size; ++i) {
            const bool open = ranks[i] != CHOSEN;
            low = std::min(low, ranks[i]);
            high = std::max(high, open ? ranks[i] : high);
            chosen += !open;
        }
        // At least `best` have the rank low or more, and `above`, which are fewer, more than high.
        int64_t above = chosen;
        if (above >= best) return CHOSEN;
        while (low < high) {
            const auto middle = static_cast<int32_t>(low + (int64_t{high} - low + 1) / 2);
            const int64_t count = count_from(ranks, size, middle);
            if (count == best) return middle;
            if (count > best) {
                low = middle;
            } else {
                high = middle - 1;
                above = count;
            }
        }
        for (int64_t i = 0; above < best; ++i) {
            if (ranks[i] == low) {
                ranks[i] = CHOSEN;
                ++above;
            }
        }
        return low + 1;
    }

    // Mark the best of a page.
    void choose_of_page(int32_t* ranks, int64_t size) {
        const int64_t best = std::min(quota_, size);
        constexpr int64_t FEWER = MOST_COMPARED / 2;
        if (size <= FEWER && compare_all<FEWER>(ranks, size, best)) return;
        if (size > FEWER && size <= MOST_COMPARED && compare_all<MOST_COMPARED>(ranks, size, best))
            return;
        const int32_t least = choose_best(ranks, size, best);
        for (int64_t i = 0; i < size; ++i) ranks[i] = ranks[i] >= least ? CHOSEN : ranks[i];
    }

    // As choose_of_page of at most MOST, unless some are as good as the last of the best. Compares
    // each with each: faster than halving, where every step waits for a count.
    template <int64_t MOST>
    static bool compare_all(int32_t* ranks, int64_t size, int64_t best) {
        constexpr int64_t BLOCKS = MOST / WIDTH;
        Integers mine[BLOCKS], better[BLOCKS] = {};
        std::memcpy(mine, ranks, sizeof mine);
        for (int64_t i = 0; i < size; ++i) {
            for (int64_t block = 0; block < BLOCKS; ++block) {
                better[block] -= ranks[i] > mine[block];
            }
        }
        const auto limit = static_cast<int32_t>(best), end = static_cast<int32_t>(size);
        Integers index, total{};
        for (int32_t lane = 0; lane < WIDTH; ++lane) index[lane] = lane;
        for (int64_t block = 0; block < BLOCKS; ++block, index += static_cast<int32_t>(WIDTH)) {
            const Integers chosen = (better[block] < limit) & (index < end);
            mine[block] = chosen ? Integers{} + CHOSEN : mine[block];
            total -= chosen;
        }
        int32_t count = 0;
        for (int64_t lane = 0; lane < WIDTH; ++lane) count += total[lane];
        if (count == limit) std::memcpy(ranks, mine, sizeof mine);
        return count == limit;
    }

    int64_t tokens_, keep_, prefix_, recent_, page_, quota_;
    Aligned<int32_t> ranks_, kept_;
};

}  // namespace growpage
