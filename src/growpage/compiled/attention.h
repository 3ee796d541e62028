// Attention of some queries over the packed keys of a row, by the processor's matrix unit (AMX).
//
// Keys lie as the unit takes them: 32 dimensions of 16 tokens a tile. Products of bfloat16 numbers
// are exact in float32, in which they are added up.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include "aligned.h"

#include "packed_pages.h"
#include "vectors.h"

namespace growpage {

constexpr int64_t TILE = 16;  // queries and tokens in a tile
constexpr int64_t STEP = 32;  // dimensions in a tile

inline Half rounded(float number) {
    const auto bits = std::bit_cast<uint32_t>(number);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

// GCC does not know that the matrix unit's instructions read memory.
inline void finish_writing() { asm volatile("" ::: "memory"); }

// The matrix unit, set up for as long as this lives: tiles 0 to 2 for products, 3 to 5 for queries,
// 6 for keys.
class Tiles {
   public:
    explicit Tiles(int64_t queries) {
        _tile_storeconfig(&before_);
        Config config{};
        config.palette = 1;
        for (int tile = 0; tile < 7; ++tile) {
            config.bytes[tile] = 64;
            config.rows[tile] = tile == 6 ? TILE : std::min((queries + 7) / 8 * 8, TILE);
        }
        finish_writing();
        _tile_loadconfig(&config);
    }
    ~Tiles() { _tile_loadconfig(&before_); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

   private:
    struct alignas(64) Config {
        uint8_t palette, start;
        uint8_t reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    };
    Config before_{};
};

// Softmax attention of some queries over the keys of one row after the other.
//
// Weights lie in blocks of 16 tokens, [tokens / 16][queries][16], and are left to be multiplied by
// their query's share(): 4 * tokens * queries bytes, the queries rounded up to 16.
class Attention {
   public:
    // Each query is the sum of so many bfloat16 parts.
    Attention(int64_t queries, int64_t dim, int64_t tokens, int64_t parts)
        : queries_(queries),
          padded_((queries + TILE - 1) / TILE * TILE),
          dim_(dim),
          tokens_(tokens),
          parts_(parts),
          tiles_(queries),
          halves_(parts * padded_ * dim),
          weights_(blocks() * padded_ * TILE),
          shares_(padded_) {}

    // Where a part of the queries is to be written: [queries, dim].
    Half* queries(int64_t part) { return halves_.data() + part * padded_ * dim_; }

    const float* weights(int64_t block) const { return weights_.data() + block * padded_ * TILE; }
    float share(int64_t query) const { return shares_[query]; }
    int64_t blocks() const { return (tokens_ + TILE - 1) / TILE; }

    // Look at a row's keys. Query i sees the tokens but the last hidden(i), at most most_hidden;
    // those weigh nothing. Runs between() in all times() times.
    template <typename Hidden, typename Between>
    void look(const Row<const Half>& row, float scale, const Hidden& hidden, int64_t most_hidden,
              const Between& between) {
        finish_writing();
        for (int64_t block = 0; block < blocks(); ++block) {
            multiply(row.keys(block * TILE), weights_.data() + block * padded_ * TILE);
        }
        const int64_t whole = std::max<int64_t>(tokens_ - most_hidden, 0) / TILE;
        // Powers of 2 instead of e: the scale has the difference.
        const __m512 scales = _mm512_set1_ps(scale * LOG2_E);
        for (int64_t first = 0; first < queries_; first += AT_ONCE) {
            float* const of = weights_.data() + first * TILE;
            const auto seen = [&](auto all, int64_t block, int64_t i) -> __mmask16 {
                return all ? 0xFFFF : first_lanes(tokens_ - hidden(first + i) - block * TILE);
            };
            __m512 most[AT_ONCE], sum[AT_ONCE];
            for (int64_t i = 0; i < AT_ONCE; ++i) {
                most[i] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
                sum[i] = _mm512_setzero_ps();
            }
            const auto find_largest = [&](auto all, int64_t from, int64_t to) {
                for (int64_t block = from; block < to; ++block) {
                    const float* products = of + block * padded_ * TILE;
                    for (int64_t i = 0; i < AT_ONCE; ++i) {
                        const __m512 product = _mm512_load_ps(products + i * TILE);
                        most[i] =
                            _mm512_mask_max_ps(most[i], seen(all, block, i), most[i], product);
                    }
                }
            };
            find_largest(std::true_type{}, 0, whole);
            find_largest(std::false_type{}, whole, blocks());
            for (__m512& each : most) {
                each = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(each)), scales);
            }
            const auto weigh = [&](auto all, int64_t from, int64_t to) {
                for (int64_t block = from; block < to; ++block) {
                    float* products = of + block * padded_ * TILE;
                    for (int64_t i = 0; i < AT_ONCE; ++i) {
                        const __m512 product = _mm512_load_ps(products + i * TILE);
                        const __m512 weight = _mm512_maskz_mov_ps(
                            seen(all, block, i),
                            power_of_two(_mm512_fmsub_ps(product, scales, most[i])));
                        _mm512_store_ps(products + i * TILE, weight);
                        sum[i] = _mm512_add_ps(sum[i], weight);
                    }
                    between();
                }
            };
            weigh(std::true_type{}, 0, whole);
            weigh(std::false_type{}, whole, blocks());
            for (int64_t i = 0; i < AT_ONCE; ++i) {
                shares_[first + i] = 1 / _mm512_reduce_add_ps(sum[i]);
            }
        }
    }

    int64_t times() const { return (queries_ + AT_ONCE - 1) / AT_ONCE * blocks(); }

   private:
    static constexpr int64_t AT_ONCE = 8;  // queries that are turned into weights together

    void multiply(const Half* keys, float* to) {
        int64_t row = 0;
        for (; row + 2 * TILE < padded_; row += 3 * TILE) multiply_rows<3>(keys, row, to);
        if (row + TILE < padded_) multiply_rows<2>(keys, row, to);
        else if (row < padded_) multiply_rows<1>(keys, row, to);
    }

    // Products of the keys with the queries in 16 to 48 rows: each tile of keys is read once.
    template <int TIMES>
    void multiply_rows(const Half* keys, int64_t row, float* to) {
        _tile_zero(0);
        if constexpr (TIMES > 1) _tile_zero(1);
        if constexpr (TIMES > 2) _tile_zero(2);
        const int64_t stride = dim_ * sizeof(Half);
        for (int64_t at = 0; at < dim_; at += STEP) {
            _tile_loadd(6, keys + at * TILE, LINE * sizeof(Half));
            for (int64_t part = 0; part < parts_; ++part) {
                const Half* half = halves_.data() + (part * padded_ + row) * dim_ + at;
                _tile_loadd(3, half, stride);
                _tile_dpbf16ps(0, 3, 6);
                if constexpr (TIMES > 1) {
                    _tile_loadd(4, half + TILE * dim_, stride);
                    _tile_dpbf16ps(1, 4, 6);
                }
                if constexpr (TIMES > 2) {
                    _tile_loadd(5, half + 2 * TILE * dim_, stride);
                    _tile_dpbf16ps(2, 5, 6);
                }
            }
        }
        _tile_stored(0, to + row * TILE, TILE * sizeof(float));
        if constexpr (TIMES > 1) _tile_stored(1, to + (row + TILE) * TILE, TILE * sizeof(float));
        if constexpr (TIMES > 2) {
            _tile_stored(2, to + (row + 2 * TILE) * TILE, TILE * sizeof(float));
        }
    }

    // 2 to numbers that are at most 0, to 2e-7 of itself.
    static __m512 power_of_two(__m512 number) {
        const auto constant = [](float value) { return _mm512_set1_ps(value); };
        const __m512 whole =
            _mm512_roundscale_ps(number, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m512 rest = _mm512_sub_ps(number, whole);
        __m512 sum = _mm512_setzero_ps();
        for (float next : POWER_OF_TWO) sum = _mm512_fmadd_ps(sum, rest, constant(next));
        return _mm512_scalef_ps(sum, whole);
    }

    int64_t queries_, padded_, dim_, tokens_, parts_;
    Tiles tiles_;
    Aligned<Half> halves_;
    Aligned<float> weights_, shares_;
};

}  // namespace growpage
