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

#include "aligned.h"

namespace growpage {

using Half = uint16_t;

constexpr int64_t LANES = 16;  // 32-bit lanes of a vector: 16 tokens' keys, 16 dims of values
constexpr int64_t LINE = 32;   // 16-bit numbers in 64 bytes

// Where a pool's rows are.
struct Pool {
    const int64_t* strides;  // numbers from one layer, one page, and one head to the next
    int64_t heads, page, dim;

    int64_t offset(int64_t row) const {
        return row / heads * strides[0] + row % heads * strides[2];
    }
};

// Where the tokens of some pages are, seen from the beginning of any row: of each 16, the first.
class Table {
   public:
    Table(const Pool& pool, const int64_t* pages, int64_t count)
        : page_(pool.page), dim_(pool.dim) {
        for (int64_t i = 0; i < count; ++i) {
            const int64_t page = pages[i] * pool.strides[1];
            for (int64_t token = 0; token < page_; token += LANES) {
                keys_.push_back(page + token * dim_);
                values_.push_back(page + token / 2 * LINE);
            }
        }
    }

    // Of so many pages that follow each other.
    static Table in_a_row(const Pool& pool, int64_t count) {
        std::vector<int64_t> pages(count);
        std::iota(pages.begin(), pages.end(), 0);
        const int64_t strides[] = {0, pool.page * pool.dim, 0};
        return {Pool{strides, pool.heads, pool.page, pool.dim}, pages.data(), count};
    }

    // The first line of the keys of 16 tokens, this one among them; dim / 2 follow each other.
    int64_t keys(int64_t token) const { return keys_[token >> 4]; }

    // The first line of two tokens' values; the next 16 dimensions are value_step() further.
    int64_t values(int64_t token) const { return values_[token >> 4] + (token >> 1) % 8 * LINE; }

    int64_t value_step() const { return page_ * LANES; }
    int64_t page() const { return page_; }
    int64_t dim() const { return dim_; }
    int64_t tokens() const { return keys_.size() * LANES; }

   private:
    int64_t page_, dim_;
    std::vector<int64_t> keys_, values_;
};

// One row's keys or values in the pages of a table.
template <typename Number>
struct Row {
    Number* base;
    const Table& table;

    Number* keys(int64_t token) const { return base + table.keys(token); }
    Number* values(int64_t token) const { return base + table.values(token); }
    int64_t value_step() const { return table.value_step(); }
    int64_t dim() const { return table.dim(); }
};

// Fetches a row's keys or values into the cache, some lines at a time while others are worked on.
class Ahead {
   public:
    Ahead(const Half* base, const Table& table) : base_(base), table_(table) {}

    // Fetch the next lines, as many as there are.
    void fetch(int64_t lines) {
        for (; lines > 0; --lines, at_ += LINE) {
            if (at_ == end_) {
                if (token_ == table_.tokens()) return;
                at_ = base_ + table_.keys(token_);
                end_ = at_ + table_.page() * table_.dim();
                token_ += table_.page();
            }
            _mm_prefetch(at_, _MM_HINT_T1);
        }
    }

    int64_t lines() const { return table_.tokens() * table_.dim() / LINE; }

   private:
    const Half* base_;
    const Table& table_;
    const Half *at_ = nullptr, *end_ = nullptr;
    int64_t token_ = 0;
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
        const __m512i blocks = _mm512_srli_epi32(tokens, 4);
        const Half* from[LANES + 1];
        __mmask16 lanes[LANES + 1];
        int64_t parts = 0;
        for (__mmask16 left = there; left != 0; left &= ~lanes[parts++]) {
            const int32_t token = kept[first + __builtin_ctz(left)];
            from[parts] = source.keys(token);
            lanes[parts] =
                _mm512_mask_cmpeq_epi32_mask(left, blocks, _mm512_set1_epi32(token / 16));
        }
        // Mostly they come from two blocks. Lanes' numbers are their tokens' low bits.
        if (parts == 1) from[1] = from[0];
        const __m512i low = _mm512_and_si512(tokens, _mm512_set1_epi32(15));
        const __m512i two = _mm512_mask_add_epi32(low, ~lanes[0], low, _mm512_set1_epi32(16));
        for (int64_t line = 0; line < source.dim() / 2 * LINE; line += LINE) {
            __m512i gathered = _mm512_permutex2var_epi32(_mm512_loadu_si512(from[0] + line), two,
                                                         _mm512_loadu_si512(from[1] + line));
            for (int64_t part = 2; part < parts; ++part) {
                gathered = _mm512_mask_permutexvar_epi32(gathered, lanes[part], low,
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
        const __m512i down = _mm512_set1_epi32(one % 2 * 16);
        const __m512i up = _mm512_set1_epi32((1 - two % 2) * 16);
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
        : pool_(pool),
          count_(count),
          source_(pool, source, pages),
          target_(pool, target, (count + pool.page - 1) / pool.page),
          copied_(Table::in_a_row(pool, pages)) {
        for (int64_t i = 0; i * pool.page < count && in_place_; ++i) {
            const int64_t* later = source + std::min(i + 1, pages);
            in_place_ = std::find(later, source + pages, target[i]) == source + pages;
        }
        if (!in_place_) copy_.resize(pages * pool.page * pool.dim);
    }

    const Table& source() const { return source_; }

    // Move the survivors kept [count] of a row.
    void move(Half* keys, Half* values, int64_t row, const int32_t* kept) {
        const int64_t offset = pool_.offset(row);
        move_keys(read(keys + offset), {keys + offset, target_}, kept, count_);
        move_values(read(values + offset), {values + offset, target_}, kept, count_);
    }

   private:
    Row<const Half> read(const Half* base) {
        if (in_place_) return {base, source_};
        const int64_t size = pool_.page * pool_.dim;
        for (int64_t token = 0; token < source_.tokens(); token += pool_.page) {
            std::copy_n(base + source_.keys(token), size, copy_.data() + token * pool_.dim);
        }
        return {copy_.data(), copied_};
    }

    const Pool pool_;
    int64_t count_;
    Table source_, target_, copied_;
    bool in_place_ = true;
    Aligned<Half> copy_;
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
