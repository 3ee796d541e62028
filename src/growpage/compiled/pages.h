// Where the pages of a pool are, however a page is laid out. A row is one KV head of one layer.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

#include "aligned.h"

namespace growpage {

using Half = uint16_t;
using Byte = uint8_t;

inline float widened(Half half) { return std::bit_cast<float>(uint32_t{half} << 16); }

// Where a pool's rows are.
struct Pool {
    const int64_t* strides;  // numbers from one layer, one page, and one head to the next
    int64_t heads, page, dim;

    int64_t offset(int64_t row) const {
        return row / heads * strides[0] + row % heads * strides[2];
    }
};

// Whether survivors can be moved to the target [filled] page by page without a copy: no page of it
// comes later in the source, so that none is written before it has been read.
inline bool moves_in_place(const int64_t* source, int64_t pages, const int64_t* target,
                           int64_t filled) {
    for (int64_t i = 0; i < filled; ++i) {
        const int64_t* later = source + std::min(i + 1, pages);
        if (std::find(later, source + pages, target[i]) != source + pages) return false;
    }
    return true;
}

// Of one layer's queries after another.
template <typename Query>
struct Ring {
    const Query* queries;
    int64_t stride;
    const int64_t* places;
    int64_t n, group;

    // Those of a row: [n, group, dim].
    void copy(int64_t row, const Pool& pool, Query* to) const {
        const int64_t size = group * pool.dim;
        const Query* of = queries + row / pool.heads * stride + row % pool.heads * size;
        for (int64_t i = 0; i < n; ++i) {
            std::copy_n(of + places[i] * pool.heads * size, size, to + i * size);
        }
    }
};

// A table of so many pages that follow each other.
template <typename Table>
Table in_a_row(const Pool& pool, int64_t count) {
    std::vector<int64_t> pages(count);
    std::iota(pages.begin(), pages.end(), 0);
    const int64_t strides[] = {0, pool.page * pool.dim, 0};
    return {Pool{strides, pool.heads, pool.page, pool.dim}, pages.data(), count};
}

// Moves the survivors of row after row to the first places of the target, in order, by the
// move_keys and move_values of the table's layout. The pages may be the same: if one comes earlier
// in the target than in the source, so that it would be written before it is read, a copy of its
// keys, then of its values, is moved.
template <typename Table, typename Number>
class Mover {
   public:
    Mover(const Pool& pool, const int64_t* source, int64_t pages, const int64_t* target,
          int64_t count)
        : pool_(pool),
          count_(count),
          source_(pool, source, pages),
          target_(pool, target, (count + pool.page - 1) / pool.page),
          copied_(in_a_row<Table>(pool, pages)),
          in_place_(moves_in_place(source, pages, target, target_.pages())) {
        if (!in_place_) copy_.resize(pages * pool.page * pool.dim);
    }

    const Table& source() const { return source_; }

    // Move the survivors kept [count] of a row.
    void move(Number* keys, Number* values, int64_t row, const int32_t* kept) {
        const int64_t offset = pool_.offset(row);
        move_keys(read(keys + offset), To{keys + offset, target_}, kept, count_);
        move_values(read(values + offset), To{values + offset, target_}, kept, count_);
    }

   private:
    using From = typename Table::template Row<const Number>;
    using To = typename Table::template Row<Number>;

    From read(const Number* base) {
        if (in_place_) return {base, source_};
        const int64_t size = pool_.page * pool_.dim;
        for (int64_t page = 0; page < source_.pages(); ++page) {
            std::copy_n(base + source_.start(page), size, copy_.data() + page * size);
        }
        return {copy_.data(), copied_};
    }

    const Pool pool_;
    int64_t count_;
    Table source_, target_, copied_;
    bool in_place_;
    Aligned<Number> copy_;
};

// Move each row's survivors [rows, count] to the first places of the target, in order.
template <typename Table, typename Number>
void move_rows(Number* keys, Number* values, const Pool& pool, int64_t rows,
               const int64_t* source, int64_t pages, const int64_t* target,
               const int64_t* survivors, int64_t count) {
    Mover<Table, Number> mover(pool, source, pages, target, count);
    std::vector<int32_t> kept(count);
    for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(survivors + row * count, count, kept.begin());
        mover.move(keys, values, row, kept.data());
    }
}

}  // namespace growpage
