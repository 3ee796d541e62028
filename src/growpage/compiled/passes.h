// Passes over the pages of a request, row by row, of 16-bit or of 8-bit numbers: what the functions
// of the same names in loops.cpp do.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "aligned.h"
#include "attention.h"
#include "packed_pages.h"
#include "pages.h"
#include "selection.h"
#include "working_set.h"

namespace growpage {

// The first numbers of a line's 16 pairs, and the second ones, as bits of float32.
inline void store_as_floats(const Half* line, uint32_t* firsts, uint32_t* seconds) {
    const __m512i both = _mm512_loadu_si512(line);
    _mm512_storeu_si512(firsts, _mm512_slli_epi32(both, 16));
    _mm512_storeu_si512(seconds, _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF0000)));
}

// The score "window" of row after row: attention of the last n tokens' queries, each of which sees
// the keys up to its own, largest of the group, mean over the n, times the value norm.
class WindowScorer {
   public:
    WindowScorer(int64_t dim, int64_t tokens, int64_t n, int64_t group)
        : tokens_(tokens), n_(n), group_(group), attention_(n * group, dim, tokens, 1) {}

    // Where the row's queries are to be written: [n, group, dim].
    Half* queries() { return attention_.queries(0); }

    // Write the scores of the tokens from the first on. Runs between(n) often, to have some n lines
    // of so many fetched.
    template <typename Between>
    void score(const Row<const Half>& keys, const Row<const Half>& values, float scale,
               int64_t first, int64_t lines, const Between& between, float* scores) {
        const auto later = [&](int64_t query) { return n_ - 1 - query / group_; };
        const int64_t some = lines / attention_.times() + 1;
        attention_.look(keys, scale, later, n_ - 1, [&] { between(some); });
        for (int64_t block = first / TILE; block < attention_.blocks(); ++block) {
            const float* weights = attention_.weights(block);
            __m512 sum = _mm512_setzero_ps();
            for (int64_t i = 0; i < n_ * group_; i += group_) {
                __m512 most = _mm512_setzero_ps();
                for (int64_t query = i; query < i + group_; ++query) {
                    const __m512 weight = _mm512_load_ps(weights + query * TILE);
                    const __m512 share = _mm512_set1_ps(attention_.share(query));
                    // In this order, what is no number is left out.
                    most = _mm512_max_ps(_mm512_mul_ps(weight, share), most);
                }
                sum = _mm512_add_ps(sum, most);
            }
            const int64_t at = block * TILE;
            const __m512 norms = value_norms(values, at, tokens_ - at);
            const __m512 score = _mm512_mul_ps(sum, _mm512_div_ps(norms, _mm512_set1_ps(n_)));
            _mm512_mask_storeu_ps(scores + at, first_lanes(tokens_ - at), score);
        }
    }

   private:
    int64_t tokens_, n_, group_;
    Attention attention_;
};

template <typename Number>
void read_keys(const Number* keys, const Pool& pool, int64_t rows, const Table& places,
               const Half* numbers, uint32_t* out) {
    Reader<Number> reader(pool, places, numbers);
    const int64_t tokens = places.tokens(), dim = pool.dim;
    for (int64_t row = 0; row < rows; ++row) {
        const Row<const Half> halves = reader.read(keys + pool.offset(row), 0);
        for (int64_t first = 0; first < tokens; first += LANES) {
            const Half* line = halves.keys(first);
            uint32_t* to = out + row * dim * tokens + first;
            for (int64_t pair = 0; pair < dim; pair += 2, line += LINE, to += 2 * tokens) {
                store_as_floats(line, to, to + tokens);
            }
        }
    }
}

template <typename Number>
void read_values(const Number* values, const Pool& pool, int64_t rows, const Table& places,
                 const Half* numbers, uint32_t* out) {
    Reader<Number> reader(pool, places, numbers);
    const int64_t tokens = places.tokens(), dim = pool.dim;
    for (int64_t row = 0; row < rows; ++row) {
        const Row<const Half> halves = reader.read(values + pool.offset(row), 0);
        for (int64_t first = 0; first < tokens; first += 2) {
            const Half* line = halves.values(first);
            uint32_t* to = out + (row * tokens + first) * dim;
            for (int64_t at = 0; at < dim; at += LANES, line += halves.value_step()) {
                store_as_floats(line, to + at, to + dim + at);
            }
        }
    }
}

template <typename Number>
void compact_by_window(Number* keys, Number* values, const Pool& pool, int64_t rows,
                       const int64_t* source, int64_t pages, const int64_t* target,
                       int64_t tokens, const Half* numbers, const Ring<Half>& ring,
                       const double* scales, int64_t keep, Selector& selector) {
    Mover<Table, Number> mover(pool, source, pages, target, keep);
    Reader<Number> key_reader(pool, mover.source(), numbers);
    Reader<Number> value_reader(pool, mover.source(), numbers);
    WindowScorer scorer(pool.dim, tokens, ring.n, ring.group);
    Aligned<float> scores(tokens);
    const int64_t first = selector.first_scored();
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t offset = pool.offset(row), next = pool.offset(std::min(row + 1, rows - 1));
        Ahead<Number> next_keys(keys + next, mover.source());
        Ahead<Number> next_values(values + next, mover.source());
        const auto fetch = [&](int64_t lines) {
            next_keys.fetch(lines);
            next_values.fetch(lines);
        };
        ring.copy(row, pool, scorer.queries());
        scorer.score(key_reader.read(keys + offset, 0), value_reader.read(values + offset, first),
                     scales[row / pool.heads], first, next_keys.lines(), fetch, scores.data());
        mover.move(keys, values, row, selector.choose(scores.data()));
    }
}

template <typename Number>
void measure_rows(const Number* keys, const Pool& pool, int64_t rows, const Table& places,
                  int64_t tokens, const Half* numbers, const float* summaries, int64_t group,
                  const double* scales, double mass, const int64_t* capacities,
                  int64_t questions, double* out) {
    constexpr int64_t PARTS = 3;  // bfloat16 numbers that a float is the sum of
    const int64_t size = group * pool.dim;
    Reader<Number> reader(pool, places, numbers);
    Attention attention(2 * group, pool.dim, tokens, PARTS);
    WorkingSet working_set(tokens);
    Aligned<float> weights(attention.blocks() * TILE);
    std::vector<int64_t> needed(2 * group);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < 2 * size; ++i) {
            float rest = summaries[(i / size * rows + row) * size + i % size];
            for (int64_t part = 0; part < PARTS; ++part) {
                const Half half = attention.queries(part)[i] = rounded(rest);
                rest -= widened(half);
            }
        }
        Ahead<Number> next(keys + pool.offset(std::min(row + 1, rows - 1)), places);
        attention.look(reader.read(keys + pool.offset(row), 0), scales[row / pool.heads],
                       [](int64_t) { return 0; }, 0, [&] { next.fetch(4); });
        double* const figures = out + row * group * (3 + questions);
        for (int64_t i = 0; i < 2 * group; ++i) {
            const __m512 share = _mm512_set1_ps(attention.share(i));
            for (int64_t block = 0; block < attention.blocks(); ++block) {
                const __m512 weight = _mm512_load_ps(attention.weights(block) + i * TILE);
                _mm512_store_ps(&weights[block * TILE], _mm512_mul_ps(weight, share));
            }
            next.fetch(next.lines() / (2 * group));
            // Of the short ones' alone.
            double* const lost = i < group ? figures + i * (3 + questions) + 3 : nullptr;
            working_set.count(weights.data(), tokens, mass, capacities, i < group ? questions : 0,
                              &needed[i], lost);
        }
        for (int64_t i = 0; i < group; ++i) {
            const auto shorter = static_cast<double>(needed[i]);
            const auto longer = static_cast<double>(needed[group + i]);
            double* const of = figures + i * (3 + questions);
            of[0] = shorter;
            of[1] = longer;
            of[2] = shorter - longer;
        }
    }
}

}  // namespace growpage
