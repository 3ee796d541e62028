// Loops over cache pages and attention weights, where torch would make many passes or sort.
//
// What the package calls; each takes pointers to contiguous tensors, and numbers. Rows are pairs of
// a layer and a KV head, in that order.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "averages.h"
#include "selection.h"
#include "working_set.h"

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

#include "attention.h"
#include "packed_pages.h"
#endif

using namespace growpage;

#ifdef __AMX_BF16__
namespace {

// The score "window" of row after row: attention of the last n tokens' queries, each of which sees
// the keys up to its own, largest of the group, mean over the n, times the value norm.
class WindowScorer {
   public:
    WindowScorer(const Table& table, int64_t tokens, int64_t n, int64_t group, double scale)
        : table_(table),
          tokens_(tokens),
          n_(n),
          group_(group),
          scale_(scale),
          attention_(n * group, table.dim(), tokens, 1) {}

    // Where the row's queries are to be written: [n, group, dim].
    Half* queries() { return attention_.queries(0); }

    // Write the scores of the tokens from the first on. The next row is fetched meanwhile.
    void score(const Half* keys, const Half* values, int64_t first, Ahead next_keys,
               Ahead next_values, float* scores) {
        const auto later = [&](int64_t query) { return n_ - 1 - query / group_; };
        const int64_t lines = next_keys.lines() / attention_.times() + 1;
        attention_.look({keys, table_}, scale_, later, n_ - 1, [&] {
            next_keys.fetch(lines);
            next_values.fetch(lines);
        });
        const Row<const Half> row{values, table_};
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
            const __m512 norms = value_norms(row, at, tokens_ - at);
            const __m512 score = _mm512_mul_ps(sum, _mm512_div_ps(norms, _mm512_set1_ps(n_)));
            _mm512_mask_storeu_ps(scores + at, first_lanes(tokens_ - at), score);
        }
    }

   private:
    const Table& table_;
    int64_t tokens_, n_, group_;
    float scale_;
    Attention attention_;
};

}  // namespace
#endif

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

// Take queries in bfloat16, one for each place [count] of a ring [layers, places, heads, dim] with
// the layers a stride apart, into averages [2, layers, heads, dim]; dim must be a multiple of 32.
// The rest is as Averager has it.
void take_in(const uint16_t* ring, int64_t stride, const int64_t* places, int64_t count,
             int64_t layers, int64_t heads, int64_t dim, const float* angles,
             const float* weights, const float* kept, float* averages) {
    const Averager averager{count, dim, angles, weights, kept};
    std::vector<const uint16_t*> queries(count);
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

#ifdef __AMX_BF16__
// 0 if the system lets this process use the processor's matrix unit.
int64_t allow_tiles() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // Linux: arch_prctl(2)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

// Keys as float32 bits [rows, dim, tokens] of whole pages.
void read_keys(const Half* half, const int64_t* strides, int64_t rows, int64_t heads,
               const int64_t* table, int64_t pages, int64_t page, int64_t dim, uint32_t* out) {
    const Pool pool{strides, heads, page, dim};
    const Table places(pool, table, pages);
    const int64_t tokens = places.tokens();
    for (int64_t row = 0; row < rows; ++row) {
        const Row<const Half> keys{half + pool.offset(row), places};
        for (int64_t first = 0; first < tokens; first += LANES) {
            const Half* line = keys.keys(first);
            uint32_t* to = out + row * dim * tokens + first;
            for (int64_t pair = 0; pair < dim; pair += 2, line += LINE, to += 2 * tokens) {
                const __m512i both = _mm512_loadu_si512(line);
                _mm512_storeu_si512(to, _mm512_slli_epi32(both, 16));
                _mm512_storeu_si512(to + tokens,
                                    _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF0000)));
            }
        }
    }
}

// Values as float32 bits [rows, tokens, dim] of whole pages.
void read_values(const Half* half, const int64_t* strides, int64_t rows, int64_t heads,
                 const int64_t* table, int64_t pages, int64_t page, int64_t dim, uint32_t* out) {
    const Pool pool{strides, heads, page, dim};
    const Table places(pool, table, pages);
    const int64_t tokens = places.tokens();
    for (int64_t row = 0; row < rows; ++row) {
        const Row<const Half> values{half + pool.offset(row), places};
        for (int64_t first = 0; first < tokens; first += 2) {
            const Half* line = values.values(first);
            uint32_t* to = out + (row * tokens + first) * dim;
            for (int64_t at = 0; at < dim; at += LANES, line += values.value_step()) {
                const __m512i both = _mm512_loadu_si512(line);
                _mm512_storeu_si512(to + at, _mm512_slli_epi32(both, 16));
                _mm512_storeu_si512(to + dim + at,
                                    _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF0000)));
            }
        }
    }
}

// Move each row's survivors [rows, count] to the first places of target, in order.
void move_rows(Half* keys, Half* values, const int64_t* strides, int64_t rows, int64_t heads,
               const int64_t* source, int64_t pages, const int64_t* target,
               const int64_t* survivors, int64_t count, int64_t page, int64_t dim) {
    Mover mover({strides, heads, page, dim}, source, pages, target, count);
    std::vector<int32_t> kept(count);
    for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(survivors + row * count, count, kept.begin());
        mover.move(keys, values, row, kept.data());
    }
}

// Keep the best tokens of each row by the score "window", and move them to the first places of
// target, in order. The queries are those at the places [n] of a ring
// [layers, places, heads * group, dim], the layers of which are a stride apart.
void compact_by_window(Half* keys, Half* values, const int64_t* strides, int64_t rows,
                       int64_t heads, const int64_t* source, int64_t pages, const int64_t* target,
                       int64_t tokens, int64_t page, int64_t dim, const Half* ring, int64_t stride,
                       const int64_t* places, int64_t n, int64_t group, double scale, int64_t keep,
                       int64_t prefix, int64_t recent, int64_t quota) {
    const Pool pool{strides, heads, page, dim};
    Mover mover(pool, source, pages, target, keep);
    WindowScorer scorer(mover.source(), tokens, n, group, scale);
    Selector selector(tokens, keep, prefix, recent, page, quota);
    Aligned<float> scores(tokens);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < n; ++i) {
            const Half* token = ring + row / heads * stride + places[i] * heads * group * dim;
            std::copy_n(token + row % heads * group * dim, group * dim,
                        scorer.queries() + i * group * dim);
        }
        const int64_t offset = pool.offset(row), next = pool.offset(std::min(row + 1, rows - 1));
        scorer.score(keys + offset, values + offset, selector.first_scored(),
                     {keys + next, mover.source()}, {values + next, mover.source()},
                     scores.data());
        mover.move(keys, values, row, selector.choose(scores.data()));
    }
}

// Of summaries [2, rows, group, dim], the short one first: for each row and member of its group,
// how many of the largest weights of the short and of the long one hold the mass, the difference,
// and what the largest capacities [questions] of the short one's leave, in
// out [rows, group, 3 + questions].
void measure_rows(const Half* keys, const int64_t* strides, int64_t rows, int64_t heads,
                  const int64_t* table, int64_t pages, int64_t tokens, int64_t page, int64_t dim,
                  const float* summaries, int64_t group, double scale, double mass,
                  const int64_t* capacities, int64_t questions, double* out) {
    constexpr int64_t PARTS = 3;  // bfloat16 numbers that a float is the sum of
    const Pool pool{strides, heads, page, dim};
    const Table places(pool, table, pages);
    const int64_t size = group * dim;
    Attention attention(2 * group, dim, tokens, PARTS);
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
        Ahead next(keys + pool.offset(std::min(row + 1, rows - 1)), places);
        attention.look({keys + pool.offset(row), places}, scale, [](int64_t) { return 0; }, 0,
                       [&] { next.fetch(4); });
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
#endif

}  // extern "C"
