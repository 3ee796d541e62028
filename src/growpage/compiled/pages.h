// Where the pages of a pool are, however a page is laid out. A row is one KV head of one layer.

#pragma once

#include <algorithm>
#include <cstdint>

namespace growpage {

using Half = uint16_t;
using Byte = uint8_t;

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

}  // namespace growpage
