// Pages of 16-bit or 8-bit numbers in the layout "amx", row by row: a row is one KV head of one
// layer.
//
// Of a page, keys lie as [tokens / 16][dim / 2][16 tokens][2], values as
// [dim / 16][tokens / 2][16 dims][2 tokens]: lines of 32 numbers in either.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "aligned.h"
#include "pages.h"

namespace growpage {

constexpr int64_t LANES = 16;  // pairs of numbers in a line: 16 tokens' keys, 16 dims of values
constexpr int64_t LINE = 32;   // numbers

template <typename Number>
struct Row;

// Where the tokens of some pages are, seen from the beginning of any row: of each 16, the first.
class Table {
   public:
    template <typename Number>
    using Row = growpage::Row<Number>;

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

    // The first line of the keys of 16 tokens, this one among them; dim / 2 follow each other.
    int64_t keys(int64_t token) const { return keys_[token >> 4]; }

    // The first line of two tokens' values; the next 16 dimensions are value_step() further.
    int64_t values(int64_t token) const { return values_[token >> 4] + (token >> 1) % 8 * LINE; }

    int64_t value_step() const { return page_ * LANES; }
    int64_t start(int64_t page) const { return keys(page * page_); }
    int64_t pages() const { return tokens() / page_; }
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

// Fetches a row's keys or values into the cache, 64 bytes at a time while others are worked on.
template <typename Number>
class Ahead {
   public:
    Ahead(const Number* base, const Table& table) : base_(base), table_(table) {}

    // Fetch the next lines of the cache, as many as there are.
    void fetch(int64_t lines) {
        for (; lines > 0; --lines, at_ += AT_ONCE) {
            if (at_ == end_) {
                if (token_ == table_.tokens()) return;
                at_ = base_ + table_.keys(token_);
                end_ = at_ + table_.page() * table_.dim();
                token_ += table_.page();
            }
            _mm_prefetch(at_, _MM_HINT_T1);
        }
    }

    int64_t lines() const { return table_.tokens() * table_.dim() / AT_ONCE; }

   private:
    static constexpr int64_t AT_ONCE = 64 / sizeof(Number);

    const Number* base_;
    const Table& table_;
    const Number *at_ = nullptr, *end_ = nullptr;
    int64_t token_ = 0;
};

inline __mmask16 first_lanes(int64_t count) {
    return count >= LANES ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1;
}

// A line of pairs, and what moving takes. Pairs are numbered by the 32-bit lanes of places.
template <typename Number>
struct Pairs;

template <>
struct Pairs<Half> {
    using Line = __m512i;
    static Line load(const Half* line) { return _mm512_loadu_si512(line); }
    static Line places(__m512i places) { return places; }
    // At each place, one of the 16 pairs of a, or if it is 16 or more, of b.
    static Line pick(Line a, Line b, Line places) {
        return _mm512_permutex2var_epi32(a, places, b);
    }
    // Where the mask says so, pairs of another line.
    static Line pick(Line line, __mmask16 where, Line other, Line places) {
        return _mm512_mask_permutexvar_epi32(line, where, places, other);
    }
    static void store(Half* to, __mmask16 where, Line line) {
        _mm512_mask_storeu_epi32(to, where, line);
    }
    // Of each pair of a and of b one number, the second one if it says so.
    static Line join(Line a, bool second_of_a, Line b, bool second_of_b) {
        const __m512i low = _mm512_srlv_epi32(a, _mm512_set1_epi32(second_of_a ? 16 : 0));
        const __m512i high = _mm512_sllv_epi32(b, _mm512_set1_epi32(second_of_b ? 0 : 16));
        return _mm512_mask_blend_epi16(0xAAAAAAAA, low, high);
    }
};

template <>
struct Pairs<Byte> {
    using Line = __m256i;
    static Line load(const Byte* line) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
    }
    static Line places(__m512i places) { return _mm512_cvtepi32_epi16(places); }
    static Line pick(Line a, Line b, Line places) {
        return _mm256_permutex2var_epi16(a, places, b);
    }
    static Line pick(Line line, __mmask16 where, Line other, Line places) {
        return _mm256_mask_permutexvar_epi16(line, where, places, other);
    }
    static void store(Byte* to, __mmask16 where, Line line) {
        _mm256_mask_storeu_epi16(to, where, line);
    }
    static Line join(Line a, bool second_of_a, Line b, bool second_of_b) {
        const __m256i low = _mm256_srlv_epi16(a, _mm256_set1_epi16(second_of_a ? 8 : 0));
        const __m256i high = _mm256_sllv_epi16(b, _mm256_set1_epi16(second_of_b ? 0 : 8));
        return _mm256_mask_blend_epi8(0xAAAAAAAA, low, high);
    }
};

// Move the survivors kept [count] of a row to the first places of the target, in order. No page of
// the target may come later in the source.
template <typename Number>
void move_keys(const Row<const Number>& source, const Row<Number>& target, const int32_t* kept,
               int64_t count) {
    using Lines = Pairs<Number>;
    for (int64_t first = 0; first < count; first += LANES) {
        const int64_t size = std::min(LANES, count - first);
        Number* to = target.keys(first);
        if (kept[first] == first && kept[first + size - 1] == first + size - 1 &&
            source.keys(first) == to) {
            continue;  // they lie where they are to be
        }
        const __mmask16 there = first_lanes(size);
        const __m512i tokens = _mm512_maskz_loadu_epi32(there, kept + first);
        const __m512i blocks = _mm512_srli_epi32(tokens, 4);
        const Number* from[LANES + 1];
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
        const auto one = Lines::places(low);
        const auto two = Lines::places(
            _mm512_mask_add_epi32(low, ~lanes[0], low, _mm512_set1_epi32(LANES)));
        for (int64_t line = 0; line < source.dim() / 2 * LINE; line += LINE) {
            auto gathered =
                Lines::pick(Lines::load(from[0] + line), Lines::load(from[1] + line), two);
            for (int64_t part = 2; part < parts; ++part) {
                gathered = Lines::pick(gathered, lanes[part], Lines::load(from[part] + line), one);
            }
            Lines::store(to + line, there, gathered);
        }
    }
}

// As move_keys. Two tokens share a line: if the survivors are odd in number, the last one is stored
// twice.
template <typename Number>
void move_values(const Row<const Number>& source, const Row<Number>& target, const int32_t* kept,
                 int64_t count) {
    using Lines = Pairs<Number>;
    const int64_t step = source.value_step();
    for (int64_t first = 0; first < count; first += 2) {
        const int64_t one = kept[first], two = kept[std::min(first + 1, count - 1)];
        const Number *a = source.values(one), *b = source.values(two);
        Number* to = target.values(first);
        if (a == to && b == to && one % 2 == 0 && two % 2 == 1) continue;
        // Each pair is one dimension of both tokens.
        for (int64_t at = 0; at < source.dim() / LANES * step; at += step) {
            Lines::store(to + at, 0xFFFF,
                         Lines::join(Lines::load(a + at), one % 2, Lines::load(b + at), two % 2));
        }
    }
}

// Bytes as the bfloat16 numbers that they stand for: those of the lower 128 are given, [128], and
// the highest bit is the sign.
class Widener {
   public:
    explicit Widener(const Half* numbers) {
        for (int64_t i = 0; i < 4; ++i) numbers_[i] = _mm512_loadu_si512(numbers + i * LINE);
    }

    void widen(const Byte* from, int64_t count, Half* to) const {
        for (int64_t i = 0; i < count; i += LINE) {
            const __m512i bytes = _mm512_cvtepu8_epi16(Pairs<Byte>::load(from + i));
            const __m512i low = _mm512_permutex2var_epi16(numbers_[0], bytes, numbers_[1]);
            const __m512i high = _mm512_permutex2var_epi16(numbers_[2], bytes, numbers_[3]);
            const __mmask32 is_high = _mm512_test_epi16_mask(bytes, _mm512_set1_epi16(0x40));
            const __m512i sign =
                _mm512_slli_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(0x80)), 8);
            _mm512_storeu_si512(
                to + i, _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), sign));
        }
    }

   private:
    __m512i numbers_[4];
};

// Reads the keys, or the values, of row after row in bfloat16.
template <typename Number>
class Reader;

// They are that already.
template <>
class Reader<Half> {
   public:
    Reader(const Pool&, const Table& table, const Half*) : table_(table) {}

    // Those from some token on; others may be anything.
    Row<const Half> read(const Half* base, int64_t) { return {base, table_}; }

   private:
    const Table& table_;
};

// They are bytes, of which it has a copy until the next row: 2 * dim bytes for each token.
template <>
class Reader<Byte> {
   public:
    Reader(const Pool& pool, const Table& table, const Half* numbers)
        : table_(table),
          copied_(in_a_row<Table>(pool, table.pages())),
          widener_(numbers),
          copy_(table.tokens() * pool.dim) {}

    Row<const Half> read(const Byte* base, int64_t first) {
        const int64_t page = table_.page(), dim = table_.dim();
        for (int64_t token = first / page * page; token < table_.tokens(); token += page) {
            widener_.widen(base + table_.keys(token), page * dim, copy_.data() + token * dim);
        }
        return {copy_.data(), copied_};
    }

   private:
    const Table& table_;
    Table copied_;
    Widener widener_;
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
