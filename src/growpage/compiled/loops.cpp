// Loops over cache pages and attention weights, where torch would make many passes or sort.
//
// What the package calls; each takes pointers to contiguous tensors, and numbers. Rows are pairs of
// a layer and a KV head, in that order.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "averages.h"
#include "pages.h"
#include "plain_passes.h"
#include "selection.h"
#include "working_set.h"

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

#include "passes.h"
#endif

using namespace growpage;

namespace {

// Calls for_number with a null pointer to numbers of so many bytes.
template <typename ForNumber>
void by_width(int64_t bytes, const ForNumber& for_number) {
    if (bytes == 1) for_number(static_cast<Byte*>(nullptr));
    else if (bytes == 2) for_number(static_cast<Half*>(nullptr));
    else for_number(static_cast<float*>(nullptr));
}

#ifdef __AMX_BF16__
// As by_width, for pages in the layout of the matrix unit: of 1 or 2 bytes.
template <typename ForNumber>
void by_tiled_width(int64_t bytes, const ForNumber& for_number) {
    if (bytes == 1) for_number(static_cast<Byte*>(nullptr));
    else for_number(static_cast<Half*>(nullptr));
}
#endif

template <typename Query>
void take_in_from(const Query* ring, int64_t stride, const int64_t* places, int64_t layers,
                  int64_t heads, const Averager& averager, float* averages) {
    const int64_t count = averager.count, dim = averager.dim;
    std::vector<const Query*> queries(count);
    for (int64_t layer = 0; layer < layers; ++layer) {
        for (int64_t i = 0; i < count; ++i) {
            queries[i] = ring + layer * stride + places[i] * heads * dim;
        }
        for (int64_t head = 0; head < heads; ++head) {
            float* one = averages + (layer * heads + head) * dim;
            averager.take_in(queries.data(), head * dim, one, one + layers * heads * dim);
        }
    }
}

}  // namespace

extern "C" {

// For each row of weights [rows, tokens], how many of the largest hold the mass, and for the first
// lossy rows what the largest capacities [questions] leave: lost [lossy, questions].
void count_and_lose(const float* weights, int64_t rows, int64_t tokens, double mass,
                    const int64_t* capacities, int64_t questions, int64_t lossy, int64_t* needed,
                    double* lost) {
    WorkingSet working_set(tokens);
    for (int64_t row = 0; row < rows; ++row) {
        working_set.count(weights + row * tokens, tokens, mass, capacities,
                          row < lossy ? questions : 0, needed + row, lost + row * questions);
    }
}

// The survivors of each row of scores [rows, tokens], ascending: kept [rows, keep].
void select_rows(const float* scores, int64_t rows, int64_t tokens, int64_t keep, int64_t prefix,
                 int64_t recent, int64_t page, int64_t quota, int64_t* kept) {
    Selector selector(tokens, keep, prefix, recent, page, quota);
    for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(selector.choose(scores + row * tokens), keep, kept + row * keep);
    }
}

// Take queries of so many bytes (2: bfloat16, 4: float32), one for each place [count] of a ring
// [layers, places, heads, dim] with the layers a stride apart, into averages
// [2, layers, heads, dim]; dim must be a multiple of 32. The rest is as Averager has it.
void take_in(int64_t bytes, const void* ring, int64_t stride, const int64_t* places, int64_t count,
             int64_t layers, int64_t heads, int64_t dim, const float* angles,
             const float* weights, const float* kept, float* averages) {
    const Averager averager{count, dim, angles, weights, kept};
    if (bytes == 2) {
        take_in_from(static_cast<const Half*>(ring), stride, places, layers, heads, averager,
                     averages);
    } else {
        take_in_from(static_cast<const float*>(ring), stride, places, layers, heads, averager,
                     averages);
    }
}

#ifdef __AMX_BF16__
// 0 if the system lets this process use the processor's matrix unit.
int64_t allow_tiles() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // Linux: arch_prctl(2)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

// Keys in the layout of the matrix unit as float32 bits [rows, dim, tokens] of whole pages. They
// are numbers of so many bytes: 2, or 1, and then those of the lower 128 bytes are given in
// bfloat16, [128]. The cache's own scales are the caller's business.
void read_keys(int64_t bytes, const void* keys, const int64_t* strides, int64_t rows,
               int64_t heads, const int64_t* table, int64_t pages, int64_t page, int64_t dim,
               const Half* numbers, uint32_t* out) {
    const Pool pool{strides, heads, page, dim};
    by_tiled_width(bytes, [&]<typename Number>(Number*) {
        growpage::read_keys(static_cast<const Number*>(keys), pool, rows,
                            Table(pool, table, pages), numbers, out);
    });
}

// Values likewise, as float32 bits [rows, tokens, dim] of whole pages.
void read_values(int64_t bytes, const void* values, const int64_t* strides, int64_t rows,
                 int64_t heads, const int64_t* table, int64_t pages, int64_t page, int64_t dim,
                 const Half* numbers, uint32_t* out) {
    const Pool pool{strides, heads, page, dim};
    by_tiled_width(bytes, [&]<typename Number>(Number*) {
        growpage::read_values(static_cast<const Number*>(values), pool, rows,
                              Table(pool, table, pages), numbers, out);
    });
}
#endif

// Of the following, pages are in the layout of the matrix unit or else in a plain one. They hold
// numbers of so many bytes: in either 2 or 1, where numbers are given as above; or in a plain one
// 4, float32.

// Move each row's survivors [rows, count] to the first places of target, in order.
void move_rows(int64_t tiled, int64_t bytes, void* keys, void* values, const int64_t* strides,
               int64_t rows, int64_t heads, const int64_t* source, int64_t pages,
               const int64_t* target, const int64_t* survivors, int64_t count, int64_t page,
               int64_t dim) {
    const Pool pool{strides, heads, page, dim};
#ifdef __AMX_BF16__
    if (tiled) {
        by_tiled_width(bytes, [&]<typename Number>(Number*) {
            growpage::move_rows<Table>(static_cast<Number*>(keys), static_cast<Number*>(values),
                                       pool, rows, source, pages, target, survivors, count);
        });
        return;
    }
#endif
    by_width(bytes, [&]<typename Number>(Number*) {
        growpage::move_rows<plain::Table>(static_cast<Number*>(keys),
                                          static_cast<Number*>(values), pool, rows, source, pages,
                                          target, survivors, count);
    });
}

// Keep the best tokens of each row by the score "window", and move them to the first places of
// target, in order. The queries are those at the places [n] of a ring
// [layers, places, heads * group, dim], the layers of which are a stride apart: in float32 if the
// pages are, else in bfloat16. Logits have a scale for each layer.
void compact_by_window(int64_t tiled, int64_t bytes, void* keys, void* values,
                       const int64_t* strides, int64_t rows, int64_t heads, const int64_t* source,
                       int64_t pages, const int64_t* target, int64_t tokens, int64_t page,
                       int64_t dim, const Half* numbers, const void* queries, int64_t stride,
                       const int64_t* places, int64_t n, int64_t group, const double* scales,
                       int64_t keep, int64_t prefix, int64_t recent, int64_t quota) {
    const Pool pool{strides, heads, page, dim};
    Selector selector(tokens, keep, prefix, recent, page, quota);
#ifdef __AMX_BF16__
    if (tiled) {
        const Ring<Half> ring{static_cast<const Half*>(queries), stride, places, n, group};
        by_tiled_width(bytes, [&]<typename Number>(Number*) {
            growpage::compact_by_window(static_cast<Number*>(keys), static_cast<Number*>(values),
                                        pool, rows, source, pages, target, tokens, numbers, ring,
                                        scales, keep, selector);
        });
        return;
    }
#endif
    by_width(bytes, [&]<typename Number>(Number*) {
        using Query = plain::QueryOf<Number>;
        const Ring<Query> ring{static_cast<const Query*>(queries), stride, places, n, group};
        plain::compact_by_window(static_cast<Number*>(keys), static_cast<Number*>(values), pool,
                                 rows, source, pages, target, tokens, numbers, ring, scales, keep,
                                 selector);
    });
}

// Of summaries [2, rows, group, dim], the short one first: for each row and member of its group,
// how many of the largest weights of the short and of the long one hold the mass, the difference,
// and what the largest capacities [questions] of the short one's leave, in
// out [rows, group, 3 + questions]. Logits have a scale for each layer.
void measure_rows(int64_t tiled, int64_t bytes, const void* keys, const int64_t* strides,
                  int64_t rows, int64_t heads, const int64_t* table, int64_t pages, int64_t tokens,
                  int64_t page, int64_t dim, const Half* numbers, const float* summaries,
                  int64_t group, const double* scales, double mass, const int64_t* capacities,
                  int64_t questions, double* out) {
    const Pool pool{strides, heads, page, dim};
#ifdef __AMX_BF16__
    if (tiled) {
        const Table places(pool, table, pages);
        by_tiled_width(bytes, [&]<typename Number>(Number*) {
            growpage::measure_rows(static_cast<const Number*>(keys), pool, rows, places, tokens,
                                   numbers, summaries, group, scales, mass, capacities, questions,
                                   out);
        });
        return;
    }
#endif
    const plain::Table places(pool, table, pages);
    by_width(bytes, [&]<typename Number>(Number*) {
        plain::measure_rows(static_cast<const Number*>(keys), pool, rows, places, tokens, numbers,
                            summaries, group, scales, mass, capacities, questions, out);
    });
}

}  // extern "C"
