// Pages of 16-bit numbers in the layout "amx", row by row: a row is one KV head of one layer.
//
// Of a page, keys lie as [tokens / 16][dim / 2][16 tokens][2], values as
// [dim / 16][tokens / 2][16 dims][2 tokens]: lines of 64 bytes in either.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace growpage {

using Half = uint16_t;

constexpr int64_t LANES = 16;  // 32-bit lanes of a vector: tokens of a block of keys, dims of values
constexpr int64_t LINE = 32;   // 16-bit numbers in 64 bytes

// Where the pool's rows are.
struct Pool {
    const int64_t* strides;  // numbers from one layer, one page, and one head to the next
    int64_t heads, page, dim;

    int64_t offset(int64_t row) const {
        return row / heads * strides[0] + row % heads * strides[2];
    }
};

// One row's keys or values in the pages of a table.
template <typename Number>
class Row {
   public:
    Row(const Pool& pool, Number* half, int64_t row, const int64_t* table)
        : base_(half + pool.offset(row)),
          table_(table),
          apart_(pool.strides[1]),
          page_(pool.page),
          dim_(pool.dim) {}

    // The first line of 16 tokens' keys; dim / 2 lines follow each other.
    Number* keys(int64_t token) const {
        return page_of(token) + token % page_ / LANES * LANES * dim_;
    }

    // The first line of two tokens' values; the next 16 dimensions are value_step() further.
    Number* values(int64_t token) const { return page_of(token) + token % page_ / 2 * LINE; }

    int64_t value_step() const { return page_ * LANES; }
    int64_t dim() const { return dim_; }

   private:
    Number* page_of(int64_t token) const { return base_ + table_[token / page_] * apart_; }

    Number* base_;
    const int64_t* table_;
    int64_t apart_, page_, dim_;
};

inline __mmask16 first_lanes(int64_t count) {
    return count >= LANES ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1;
}

// Move the survivors kept [count] of a row to the first places of the target, in order. No page of
// the target may come later in the source.
inline void move_keys(const Row<const Half>& source, const Row<Half>& target, const int32_t* kept,
                      int64_t count) {
    for (int64_t first = 0; first < count; first += LANES) {
        const int64_t size = std::min(LANES, count - first);
        Half* to = target.keys(first);
        if (kept[first] == first && kept[first + size - 1] == first + size - 1 &&
            source.keys(first) == to) {
            continue;  // they lie where they are to be
        }
        const __mmask16 there = first_lanes(size);
        const __m512i tokens = _mm512_maskz_loadu_epi32(there, kept + first);
        const __m512i blocks = _mm512_srli_epi32(tokens, 4);  // lanes take their own token's low bits
        const Half* from[LANES];
        __mmask16 lanes[LANES];
        int64_t parts = 0;
        for (__mmask16 left = there; left != 0; left &= ~lanes[parts++]) {
            const int32_t token = kept[first + __builtin_ctz(left)];
            from[parts] = source.keys(token);
            lanes[parts] = _mm512_mask_cmpeq_epi32_mask(left, blocks, _mm512_set1_epi32(token / 16));
        }
        for (int64_t line = 0; line < source.dim() / 2 * LINE; line += LINE) {
            __m512i gathered = _mm512_permutexvar_epi32(tokens, _mm512_loadu_si512(from[0] + line));
            for (int64_t part = 1; part < parts; ++part) {
                gathered = _mm512_mask_permutexvar_epi32(gathered, lanes[part], tokens,
                                                         _mm512_loadu_si512(from[part] + line));
            }
            _mm512_mask_storeu_epi32(to + line, there, gathered);
        }
    }
}

// As move_keys. Two tokens share a line: if the survivors are odd in number, the last one is stored
// twice.
inline void move_values(const Row<const Half>& source, const Row<Half>& target,
                        const int32_t* kept, int64_t count) {
    const int64_t step = source.value_step();
    for (int64_t first = 0; first < count; first += 2) {
        const int64_t one = kept[first], two = kept[std::min(first + 1, count - 1)];
        const Half *a = source.values(one), *b = source.values(two);
        Half* to = target.values(first);
        if (a == to && b == to && one % 2 == 0 && two % 2 == 1) continue;
        // Each 32-bit lane is one dimension of both tokens.
        const __m512i down = _mm512_set1_epi32(one % 2 * 16), up = _mm512_set1_epi32((1 - two % 2) * 16);
        for (int64_t at = 0; at < source.dim() / LANES * step; at += step) {
            const __m512i low = _mm512_srlv_epi32(_mm512_loadu_si512(a + at), down);
            const __m512i high = _mm512_sllv_epi32(_mm512_loadu_si512(b + at), up);
            _mm512_storeu_si512(to + at, _mm512_mask_blend_epi16(0xAAAAAAAA, low, high));
        }
    }
}

// Moves the survivors of row after row to the first places of the target, in order. The pages may
// be the same: if one comes earlier in the target than in the source, so that it would be written
// before it is read, a copy of the row is moved, 4 * page * dim bytes for each page.
class Mover {
   public:
    Mover(const Pool& pool, const int64_t* source, int64_t pages, const int64_t* target,
          int64_t count)
        : pool_(pool), source_(source), target_(target), count_(count), places_(pages) {
        const int64_t filled = (count + pool.page - 1) / pool.page;
        for (int64_t i = 0; i < filled && in_place_; ++i) {
            in_place_ = std::find(source + std::min(i + 1, pages), source + pages, target[i]) ==
                        source + pages;
        }
        if (!in_place_) {
            std::iota(places_.begin(), places_.end(), 0);
            copy_.resize(pages * pool.page * pool.dim);
        }
    }

    // Move the survivors kept [count] of a row.
    void move(Half* keys, Half* values, int64_t row, const int32_t* kept) {
        move_keys(source(keys, row), {pool_, keys, row, target_}, kept, count_);
        move_values(source(values, row), {pool_, values, row, target_}, kept, count_);
    }

   private:
    Row<const Half> source(const Half* half, int64_t row) {
        if (in_place_) return {pool_, half, row, source_};
        const int64_t size = pool_.page * pool_.dim;
        for (size_t i = 0; i < places_.size(); ++i) {
            const Half* page = half + pool_.offset(row) + source_[i] * pool_.strides[1];
            std::copy_n(page, size, copy_.data() + i * size);
        }
        const int64_t strides[] = {0, size, 0};
        return {Pool{strides, 1, pool_.page, pool_.dim}, copy_.data(), 0, places_.data()};
    }

    const Pool pool_;
    const int64_t *source_, *target_;
    int64_t count_;
    bool in_place_ = true;
    std::vector<int64_t> places_;
    std::vector<Half> copy_;
};

// The norms of the values of 16 tokens, of which there are so many.
inline __m512 value_norms(const Row<const Half>& row, int64_t first, int64_t size) {
    alignas(64) float squares[LANES] = {};
    for (int64_t token = first; token < first + std::min(size, LANES); token += 2) {
        const Half* line = row.values(token);
        __m512 ones = _mm512_setzero_ps(), twos = ones;
        for (int64_t dim = 0; dim < row.dim(); dim += LANES, line += row.value_step()) {
            const __m512i both = _mm512_loadu_si512(line);
            const __m512 one = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            const __m512 two =
                _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xFFFF0000)));
            ones = _mm512_fmadd_ps(one, one, ones);
            twos = _mm512_fmadd_ps(two, two, twos);
        }
        squares[token - first] = _mm512_reduce_add_ps(ones);
        squares[token - first + 1] = _mm512_reduce_add_ps(twos);
    }
    return _mm512_sqrt_ps(_mm512_load_ps(squares));
}

}  // namespace growpage
