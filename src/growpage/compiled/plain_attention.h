// Attention of some queries over the keys of a row, in float32.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "aligned.h"
#include "plain_pages.h"
#include "vectors.h"

namespace growpage::plain {

// 2 to numbers that are at most 0, to 3e-7 of itself. What is no number stays none.
inline Floats power_of_two(Floats number) {
    constexpr float SHIFT = 0x1.8p23f;  // added, it leaves whole numbers in the lowest bits
    const Floats shifted = number + SHIFT;
    const Floats rest = number - (shifted - SHIFT);
    Floats sum = {};
    for (float next : POWER_OF_TWO) sum = sum * rest + next;
    const Words exponent = reinterpret_cast<Words>(shifted) - std::bit_cast<uint32_t>(SHIFT) + 127;
    return number < -126 ? Floats{} : sum * reinterpret_cast<Floats>(exponent << 23);
}

// Softmax attention of some queries over the keys of one row after the other: 4 * tokens * queries
// bytes, tokens rounded up to pages and queries to 4.
class Attention {
   public:
    // Over the first tokens of so many pages.
    Attention(int64_t queries, int64_t tokens, int64_t pages, const Pool& pool)
        : count_(queries),
          tokens_(tokens),
          room_(pages * pool.page),
          dim_(pool.dim),
          queries_((queries + AT_ONCE - 1) / AT_ONCE * AT_ONCE * dim_),
          packed_(queries_.size()),
          weights_(queries_.size() / dim_ * room_),
          keys_(dim_ * BLOCK) {}

    // Where the queries are to be written: [queries, dim].
    float* queries() { return queries_.data(); }

    // Of all tokens, and after these 0 to the end of their page.
    const float* weights(int64_t query) const { return weights_.data() + query * room_; }

    // Look at a row's keys. Query i sees the tokens but the last hidden(i); those weigh nothing.
    template <typename Number, typename Hidden>
    void look(const Row<const Number>& row, float scale, const Hidden& hidden) {
        const int64_t page = row.table.page();
        pack();
        for (int64_t first = 0; first < tokens_; first += BLOCK) {
            const Number* keys = row.key(first);
            // A page's lines follow each other, the next page's do not.
            const Number* next = row.key(std::min(first + page, room_ - BLOCK));
            for (int64_t at = 0; at < dim_; ++at, keys += page, next += page) {
                __builtin_prefetch(next);
                for (int64_t i = 0; i < BLOCK; i += WIDTH) {
                    write(&keys_[at * BLOCK + i], read(keys + i));
                }
            }
            for (int64_t query = 0; query < count_; query += AT_ONCE) multiply(query, first);
        }
        // Powers of 2 instead of e: the scale has the difference.
        const float scale_of_two = scale * LOG2_E;
        for (int64_t query = 0; query < count_; ++query) {
            weigh(weights_.data() + query * room_, tokens_ - hidden(query), scale_of_two);
        }
    }

   private:
    static constexpr int64_t BLOCK = 16;   // tokens that are worked on at once
    static constexpr int64_t AT_ONCE = 4;  // queries that are
    static constexpr int64_t VECTORS = BLOCK / WIDTH;

    // Queries that are worked on at once, dimension by dimension.
    void pack() {
        for (int64_t query = 0; query < count_; ++query) {
            const float* of = queries_.data() + query * dim_;
            float* to = packed_.data() + query / AT_ONCE * AT_ONCE * dim_ + query % AT_ONCE;
            for (int64_t at = 0; at < dim_; ++at) to[at * AT_ONCE] = of[at];
        }
    }

    // Products of some queries with the keys of a block.
    void multiply(int64_t query, int64_t first) {
        const float* of = packed_.data() + query * dim_;
        const float* keys = keys_.data();
        Floats sums[AT_ONCE][VECTORS] = {};
        for (int64_t at = 0; at < dim_; ++at, of += AT_ONCE, keys += BLOCK) {
            for (int64_t v = 0; v < VECTORS; ++v) {
                const Floats some = read(keys + v * WIDTH);
                for (int64_t i = 0; i < AT_ONCE; ++i) sums[i][v] += of[i] * some;
            }
        }
        for (int64_t i = 0; i < AT_ONCE; ++i) {
            float* to = weights_.data() + (query + i) * room_ + first;
            for (int64_t v = 0; v < VECTORS; ++v) write(to + v * WIDTH, sums[i][v]);
        }
    }

    // Turn a query's products into weights, of which it sees so many.
    void weigh(float* products, int64_t seen, float scale) {
        constexpr float LEAST = -std::numeric_limits<float>::infinity();
        std::fill(products + seen, products + room_, LEAST);
        Floats most = Floats{} + LEAST;
        for (int64_t i = 0; i < seen; i += WIDTH) {
            const Floats product = read(products + i);
            most = product > most ? product : most;
        }
        float largest = LEAST;
        for (int64_t lane = 0; lane < WIDTH; ++lane) largest = std::max(largest, most[lane]);
        largest *= scale;
        Floats sums = {};
        for (int64_t i = 0; i < room_; i += WIDTH) {
            const Floats weight = power_of_two(read(products + i) * scale - largest);
            write(products + i, weight);
            sums += weight;
        }
        const float share = 1 / sum_of(sums);
        for (int64_t i = 0; i < room_; i += WIDTH) write(products + i, read(products + i) * share);
    }

    int64_t count_, tokens_, room_, dim_;
    Aligned<float> queries_, packed_, weights_, keys_;
};

}  // namespace growpage::plain
