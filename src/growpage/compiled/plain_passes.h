// Passes over the pages of a request in a plain layout: what the functions of the same names in
// loops.cpp do.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "aligned.h"
#include "pages.h"
#include "plain_attention.h"
#include "plain_pages.h"
#include "selection.h"
#include "vectors.h"
#include "working_set.h"

namespace growpage::plain {

// What queries are stored as, beside pages of such numbers.
template <typename Number>
using QueryOf = std::conditional_t<std::is_same_v<Number, float>, float, Half>;

template <typename Number>
float norm(const Number* value, int64_t dim) {
    Floats squares = {};
    for (int64_t at = 0; at < dim; at += WIDTH) {
        const Floats some = read(value + at);
        squares += some * some;
    }
    return std::sqrt(sum_of(squares));
}

// The score "window" of the tokens from the first on: attention of the last n tokens' queries,
// each of which sees the keys up to its own, largest of the group, mean over the n, times the value
// norm.
template <typename Number>
void score_by_window(const Attention& attention, const Row<const Number>& values, int64_t n,
                     int64_t group, int64_t first, int64_t tokens, float* scores) {
    for (int64_t at = first / WIDTH * WIDTH; at < tokens; at += WIDTH) {
        Floats sum = {};
        for (int64_t i = 0; i < n * group; i += group) {
            Floats most = {};
            for (int64_t query = i; query < i + group; ++query) {
                const Floats weight = read(attention.weights(query) + at);
                most = weight > most ? weight : most;  // what is no number is left out
            }
            sum += most;
        }
        for (int64_t lane = 0; lane < std::min(WIDTH, tokens - at); ++lane) {
            const float size = norm(values.value(at + lane), values.table.dim());
            scores[at + lane] = sum[lane] * (size / static_cast<float>(n));
        }
    }
}

template <typename Number>
void compact_by_window(Number* keys, Number* values, const Pool& pool, int64_t rows,
                       const int64_t* source, int64_t pages, const int64_t* target,
                       int64_t tokens, const Half* numbers, const Ring<QueryOf<Number>>& ring,
                       const double* scales, int64_t keep, Selector& selector) {
    Mover<Table, Number> mover(pool, source, pages, target, keep);
    Reader<Number> key_reader(pool, mover.source(), numbers);
    Reader<Number> value_reader(pool, mover.source(), numbers);
    const int64_t queries = ring.n * ring.group;
    Attention attention(queries, tokens, pages, pool);
    std::vector<QueryOf<Number>> stored(queries * pool.dim);
    Aligned<float> scores(tokens);
    const int64_t first = selector.first_scored();
    const auto later = [&](int64_t query) { return ring.n - 1 - query / ring.group; };
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t offset = pool.offset(row);
        ring.copy(row, pool, stored.data());
        std::transform(stored.begin(), stored.end(), attention.queries(), [](auto query) {
            if constexpr (std::is_same_v<decltype(query), Half>) return widened(query);
            else return query;
        });
        attention.look(key_reader.read(keys + offset, 0), scales[row / pool.heads], later);
        score_by_window(attention, value_reader.read(values + offset, first), ring.n, ring.group,
                        first, tokens, scores.data());
        mover.move(keys, values, row, selector.choose(scores.data()));
    }
}

template <typename Number>
void measure_rows(const Number* keys, const Pool& pool, int64_t rows, const Table& places,
                  int64_t tokens, const Half* numbers, const float* summaries, int64_t group,
                  const double* scales, double mass, const int64_t* capacities,
                  int64_t questions, double* out) {
    const int64_t size = group * pool.dim;
    Reader<Number> reader(pool, places, numbers);
    Attention attention(2 * group, tokens, places.pages(), pool);
    WorkingSet working_set(tokens);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t which = 0; which < 2; ++which) {
            std::copy_n(summaries + (which * rows + row) * size, size,
                        attention.queries() + which * size);
        }
        attention.look(reader.read(keys + pool.offset(row), 0), scales[row / pool.heads],
                       [](int64_t) { return 0; });
        double* of = out + row * group * (3 + questions);
        for (int64_t i = 0; i < group; ++i, of += 3 + questions) {
            int64_t shorter, longer;
            working_set.count(attention.weights(i), tokens, mass, capacities, questions, &shorter,
                              of + 3);
            working_set.count(attention.weights(group + i), tokens, mass, capacities, 0, &longer,
                              nullptr);
            of[0] = static_cast<double>(shorter);
            of[1] = static_cast<double>(longer);
            of[2] = static_cast<double>(shorter - longer);
        }
    }
}

}  // namespace growpage::plain
