// Pages in the layouts "vec" and "vec16", row by row: of a page, keys lie as [dim][tokens], and
// values as [tokens][dim]. Numbers are float32, bfloat16, or bytes that stand for some.
//
// Nothing here depends on the processor but the width of a vector.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "aligned.h"
#include "pages.h"
#include "vectors.h"

namespace growpage::plain {

template <typename Number>
struct Row;

// Where some pages are, seen from the beginning of any row.
class Table {
   public:
    template <typename Number>
    using Row = plain::Row<Number>;

    Table(const Pool& pool, const int64_t* pages, int64_t count)
        : page_(pool.page), dim_(pool.dim), starts_(count) {
        for (int64_t i = 0; i < count; ++i) starts_[i] = pages[i] * pool.strides[1];
    }

    int64_t start(int64_t page) const { return starts_[page]; }
    int64_t pages() const { return starts_.size(); }
    int64_t page() const { return page_; }
    int64_t dim() const { return dim_; }

   private:
    int64_t page_, dim_;
    std::vector<int64_t> starts_;
};

// One row's keys or values in the pages of a table.
template <typename Number>
struct Row {
    Number* base;
    const Table& table;

    Number* page(int64_t number) const { return base + table.start(number); }

    // The first number of a token's key; the next one is as far as a page has tokens.
    Number* key(int64_t token) const { return page(token / table.page()) + token % table.page(); }

    Number* value(int64_t token) const {
        return page(token / table.page()) + token % table.page() * table.dim();
    }
};

// Move the survivors kept [count] of a row to the first places of the target, in order. No page of
// the target may come later in the source.
template <typename Number>
void move_keys(const Row<const Number>& source, const Row<Number>& target, const int32_t* kept,
               int64_t count) {
    const int64_t page = target.table.page(), size = page * target.table.dim();
    std::vector<const Number*> from(page);
    for (int64_t first = 0; first < count; first += page) {
        const int64_t filled = std::min(page, count - first);
        Number* const to = target.page(first / page);
        for (int64_t i = 0; i < filled; ++i) from[i] = source.key(kept[first + i]);
        int64_t done = 0;  // tokens that lie where they are to be
        while (done < filled && from[done] == to + done) ++done;
        for (int64_t at = 0; at < size; at += page) {
            // In this order: the same page may be read a little further on.
            for (int64_t i = done; i < filled; ++i) to[at + i] = from[i][at];
        }
    }
}

// As move_keys.
template <typename Number>
void move_values(const Row<const Number>& source, const Row<Number>& target, const int32_t* kept,
                 int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const Number* from = source.value(kept[i]);
        Number* to = target.value(i);
        if (from != to) std::copy_n(from, target.table.dim(), to);
    }
}

// Reads the keys, or the values, of row after row as numbers of a type that vectors are read from.
template <typename Number>
class Reader {
   public:
    Reader(const Pool&, const Table& table, const Half*) : table_(table) {}

    // Those from some token on; others may be anything.
    Row<const Number> read(const Number* base, int64_t) { return {base, table_}; }

   private:
    const Table& table_;
};

// Bytes, of which it has a copy until the next row: 4 * dim bytes for each token. The bfloat16
// numbers of the lower 128 are given, [128], and the highest bit is the sign.
template <>
class Reader<Byte> {
   public:
    Reader(const Pool& pool, const Table& table, const Half* numbers)
        : table_(table),
          copied_(in_a_row<Table>(pool, table.pages())),
          copy_(table.pages() * pool.page * pool.dim) {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            const uint32_t bits = numbers[byte % 128];
            numbers_[byte] = std::bit_cast<float>(bits << 16 | byte / 128 << 31);
        }
    }

    Row<const float> read(const Byte* base, int64_t first) {
        const int64_t size = table_.page() * table_.dim();
        for (int64_t page = first / table_.page(); page < table_.pages(); ++page) {
            const Byte* from = base + table_.start(page);
            float* to = copy_.data() + page * size;
            for (int64_t i = 0; i < size; ++i) to[i] = numbers_[from[i]];
        }
        return {copy_.data(), copied_};
    }

   private:
    const Table& table_;
    Table copied_;
    float numbers_[256];
    Aligned<float> copy_;
};

}  // namespace growpage::plain
