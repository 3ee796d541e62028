// Which tokens survive an eviction.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

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
          ranks_(tokens),
          above_(std::min(page, SMALL_PAGE)) {}

    // Scores of tokens before this one are not looked at: their pages are kept whole.
    int64_t first_scored() const { return prefix_ / page_ * page_; }

    // Write the survivors of scores [tokens], ascending: kept [keep].
    template <typename Index>
    void choose(const float* scores, Index* kept) {
        for (int64_t i = 0; i < tokens_; ++i) ranks_[i] = rank_of(scores[i]);
        if (quota_ > 0) {
            for (int64_t first = first_scored(); first < tokens_; first += page_) {
                choose_of_page(ranks_.data() + first, std::min(page_, tokens_ - first));
            }
        }
        std::fill_n(ranks_.begin(), prefix_, CHOSEN);
        std::fill_n(ranks_.end() - recent_, recent_, CHOSEN);
        const Cut cut = cut_of(ranks_.data(), tokens_, keep_);
        int64_t equal = cut.equal;
        int64_t count = 0;
        for (int64_t i = 0; i < tokens_; ++i) {
            const bool survives = ranks_[i] > cut.rank || (ranks_[i] == cut.rank && equal-- > 0);
            if (count < keep_) kept[count] = static_cast<Index>(i);
            count += survives;
        }
    }

   private:
    static constexpr int32_t CHOSEN = std::numeric_limits<int32_t>::max();
    static constexpr int64_t SMALL_PAGE = 64;

    // The lowest rank that is among the best, and how many of that rank are.
    struct Cut {
        int32_t rank;
        int64_t equal;
    };

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

    // Of the best ranks, best of them at least 1.
    static Cut cut_of(const int32_t* ranks, int64_t size, int64_t best) {
        int32_t low = CHOSEN, high = std::numeric_limits<int32_t>::min();
        int32_t chosen = 0;
#pragma omp simd reduction(min : low) reduction(max : high) reduction(+ : chosen)
        for (int64_t i = 0; i < size; ++i) {
            const bool open = ranks[i] != CHOSEN;
            low = std::min(low, ranks[i]);
            high = std::max(high, open ? ranks[i] : high);
            chosen += !open;
        }
        if (chosen >= best) return {CHOSEN, best};
        // At least `best` have the rank low or more, and fewer have more than high: `above` of them.
        int64_t above = chosen;
        while (low < high) {
            const auto middle =
                static_cast<int32_t>(low + (int64_t{high} - low + 1) / 2);
            const int64_t count = count_from(ranks, size, middle);
            if (count == best) return {middle - 1, 0};
            if (count > best) {
                low = middle;
            } else {
                high = middle - 1;
                above = count;
            }
        }
        return {low, best - above};
    }

    // Mark the best of a page.
    void choose_of_page(int32_t* ranks, int64_t size) {
        const int64_t best = std::min(quota_, size);
        if (size <= SMALL_PAGE) {
            // Compare each with each: faster than halving, which waits for every count.
            std::fill_n(above_.begin(), size, 0);
            for (int64_t i = 0; i < size; ++i) {
                const int32_t rank = ranks[i];
                int32_t* __restrict above = above_.data();
                for (int32_t j = 0; j < size; ++j) {
                    above[j] += (rank > ranks[j]) | ((rank == ranks[j]) & (i < j));
                }
            }
            for (int64_t i = 0; i < size; ++i) {
                ranks[i] = above_[i] < best ? CHOSEN : ranks[i];
            }
            return;
        }
        const Cut cut = cut_of(ranks, size, best);
        int64_t equal = cut.equal;
        for (int64_t i = 0; i < size; ++i) {
            if (ranks[i] > cut.rank || (ranks[i] == cut.rank && equal-- > 0)) ranks[i] = CHOSEN;
        }
    }

    int64_t tokens_, keep_, prefix_, recent_, page_, quota_;
    std::vector<int32_t> ranks_, above_;
};

}  // namespace growpage
