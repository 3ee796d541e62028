// Loops over cache pages and attention weights, where torch would make many passes or sort.
//
// Rows of pages are pairs of a layer and a KV head, in that order; strides are the words from one
// layer, one page, and one head to the next. Pages are of the layout "amx": keys as
// [tokens / 16][dim / 2][16 tokens][2], values as [dim / 16][tokens / 2][16 dims][2 tokens].

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#ifdef __AMX_BF16__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t TILE = 16;
constexpr int64_t BINS = 2048;
constexpr uint32_t SIGN = 0x80000000u;

// The bits of a float; numbers from 0 on are in the order of their bits.
uint32_t bits_of(float number) { return std::bit_cast<uint32_t>(number); }

int64_t bin_of(float weight) { return (bits_of(weight) & ~SIGN) >> 20; }

// Larger numbers have larger ranks; NaN has the smallest.
uint32_t rank_of(float score) {
    const uint32_t bits = bits_of(score);
    if (std::isnan(score)) return 0;
    return bits & SIGN ? ~bits : bits | SIGN;
}

int64_t base_of(const int64_t* strides, int64_t row, int64_t heads) {
    return row / heads * strides[0] + row % heads * strides[2];
}

// Counts how many of the largest weights hold a mass, and what the largest few leave.
//
// A first pass counts and adds up by leading bits; only the weights that share them with the place
// that is sought are sorted.
class Counter {
   public:
    Counter() : counts(BINS), sums(BINS), sought(BINS) {}

    // Of the weights of a row; lost [questions] is what the largest capacities [questions] leave.
    void count(const float* of, int64_t tokens, double mass, const int64_t* capacities,
               int64_t questions, int64_t* needed, double* lost) {
        std::fill(counts.begin(), counts.end(), 0);
        std::fill(sums.begin(), sums.end(), 0.0);
        bool sound = true;
        int64_t low = BINS - 1, high = 0;
        for (int64_t i = 0; i < tokens; ++i) {
            const int64_t bin = bin_of(of[i]);
            sound &= !std::isnan(of[i]);
            ++counts[bin];
            sums[bin] += of[i];
            low = std::min(low, bin);
            high = std::max(high, bin);
        }
        if (!sound) {
            *needed = 1;
            std::fill_n(lost, questions, std::numeric_limits<double>::quiet_NaN());
            return;
        }
        // For the mass (question 0) and each capacity: the bin in which the last weight lies, and what
        // the bins above it hold.
        const auto enough = [&](int64_t question, double held, int64_t taken) {
            return question == 0 ? held >= mass : taken >= capacities[question - 1];
        };
        places.assign(questions + 1, Place{});
        for (int64_t question = 0; question <= questions; ++question) {
            Place& place = places[question];
            for (place.bin = high; place.bin >= low; --place.bin) {
                const double held = place.held + sums[place.bin];
                const int64_t taken = place.taken + counts[place.bin];
                if (enough(question, held, taken)) break;
                place.held = held;
                place.taken = taken;
            }
            if (place.bin >= low) sought[place.bin] = true;
        }
        found.clear();
        for (int64_t i = 0; i < tokens; ++i) {
            if (sought[bin_of(of[i])]) found.push_back(of[i]);
        }
        std::sort(found.begin(), found.end(), std::greater<float>());
        for (int64_t question = 0; question <= questions; ++question) {
            Place& place = places[question];
            if (place.bin >= low) {
                sought[place.bin] = false;
                // Larger numbers are in higher bins, so those of this bin lie together.
                auto next = std::partition_point(found.begin(), found.end(), [&](float weight) {
                    return bin_of(weight) > place.bin;
                });
                for (int64_t left = counts[place.bin];
                     left > 0 && !enough(question, place.held, place.taken); --left) {
                    place.held += *next++;
                    ++place.taken;
                }
            }
            if (question == 0) *needed = std::max<int64_t>(place.taken, 1);
            else lost[question - 1] = std::max(1 - place.held, 0.0);
        }
    }

   private:
    struct Place {
        int64_t bin = 0, taken = 0;
        double held = 0;
    };

    std::vector<int64_t> counts;
    std::vector<double> sums;
    std::vector<char> sought;
    std::vector<Place> places;
    std::vector<float> found;
};

#ifdef __AMX_BF16__
// ---- attention over packed pages -------------------------------------------------------------

// A page's keys lie as the processor's matrix unit takes them: 32 dimensions of 16 tokens a tile.
// Products of bfloat16 numbers are exact in float32, in which they are added up.

constexpr int64_t STEP = 32;  // dimensions in a tile

// Three bfloat16 numbers that a float is the sum of.
uint16_t rounded(float number) {
    const uint32_t bits = bits_of(number);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

float widened(uint16_t half) { return std::bit_cast<float>(uint32_t(half) << 16); }

// GCC does not know that the matrix unit's instructions read memory.
void finish_writing() { asm volatile("" ::: "memory"); }

class Tiles {
   public:
    Tiles() {
        _tile_storeconfig(&before_);
        Config config{};
        config.palette = 1;
        for (int tile : {0, 1, 2}) {
            config.bytes[tile] = 64;
            config.rows[tile] = TILE;
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

// Softmax attention of some queries over the keys of one layer and KV head.
class Attention {
   public:
    Attention(int64_t queries, int64_t dim, int64_t tokens, int64_t parts)
        : queries_(queries),
          dim_(dim),
          width_((tokens + TILE - 1) / TILE * TILE),
          padded_((queries + TILE - 1) / TILE * TILE),
          parts_(parts),
          split_(parts * padded_ * dim),
          rest_(queries * dim),
          weights_(padded_ * width_) {}

    // The weights of query i over the tokens from the first on.
    float* weights(int64_t i) { return weights_.data() + i * width_; }

    // Products with queries [queries, dim].
    void look(const float* queries, const uint32_t* base, int64_t page_stride,
              const int64_t* table, int64_t page) {
        std::copy_n(queries, queries_ * dim_, rest_.begin());
        for (int64_t part = 0; part < parts_; ++part) {
            uint16_t* __restrict to = split_.data() + part * padded_ * dim_;
            float* __restrict rest = rest_.data();
            for (int64_t i = 0; i < queries_ * dim_; ++i) {
                to[i] = rounded(rest[i]);
                rest[i] -= widened(to[i]);
            }
        }
        finish_writing();
        for (int64_t first = 0; first < width_; first += TILE) {
            const uint32_t* keys =
                base + table[first / page] * page_stride + first % page * (dim_ / 2);
            for (int64_t row = 0; row < padded_; row += TILE) {
                _tile_zero(0);
                for (int64_t part = 0; part < parts_; ++part) {
                    const uint16_t* half = split_.data() + (part * padded_ + row) * dim_;
                    for (int64_t at = 0; at < dim_; at += STEP) {
                        _tile_loadd(1, half + at, dim_ * sizeof *half);
                        _tile_loadd(2, keys + at / 2 * TILE, TILE * sizeof *keys);
                        _tile_dpbf16ps(0, 1, 2);
                    }
                }
                _tile_stored(0, weights(row) + first, width_ * sizeof(float));
            }
        }
    }

    // Turn query i's products into weights over the first seen tokens; the others weigh nothing.
    void normalise(int64_t i, int64_t seen, float scale) {
        float* of = weights(i);
        const __m512 scales = _mm512_set1_ps(scale);
        __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        for (int64_t t = 0; t < seen; t += TILE) {
            most = _mm512_mask_max_ps(most, visible(seen - t), most, _mm512_loadu_ps(of + t));
        }
        most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
        __m512 sum = _mm512_setzero_ps();
        for (int64_t t = 0; t < width_; t += TILE) {
            const __m512 logit = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(of + t), most), scales);
            const __m512 weight = _mm512_maskz_mov_ps(visible(seen - t), exponential(logit));
            sum = _mm512_add_ps(sum, weight);
            _mm512_storeu_ps(of + t, weight);
        }
        const __m512 share = _mm512_set1_ps(1 / _mm512_reduce_add_ps(sum));
        for (int64_t t = 0; t < width_; t += TILE) {
            _mm512_storeu_ps(of + t, _mm512_mul_ps(_mm512_loadu_ps(of + t), share));
        }
    }

   private:
    static __mmask16 visible(int64_t tokens) {
        return tokens >= TILE ? 0xFFFF : tokens <= 0 ? 0 : (1 << tokens) - 1;
    }

    // e to numbers that are at most 0, to some 1e-7 of itself.
    static __m512 exponential(__m512 number) {
        const auto constant = [](float value) { return _mm512_set1_ps(value); };
        const __m512 power = _mm512_roundscale_ps(_mm512_mul_ps(number, constant(1.44269504f)),
                                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512 rest = _mm512_fnmadd_ps(power, constant(0.693359375f), number);
        rest = _mm512_fmadd_ps(power, constant(2.12194440e-4f), rest);
        __m512 sum = constant(1.9875691500e-4f);  // the coefficients of Cephes' expf
        for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                           5.0000001201e-1f}) {
            sum = _mm512_fmadd_ps(sum, rest, constant(next));
        }
        sum = _mm512_fmadd_ps(_mm512_mul_ps(sum, rest), rest, _mm512_add_ps(rest, constant(1)));
        return _mm512_scalef_ps(sum, power);
    }

    int64_t queries_, dim_, width_, padded_, parts_;
    std::vector<uint16_t> split_;
    std::vector<float> rest_, weights_;
};

// The norm of each token's values; two tokens share each word.
void value_norms(const uint32_t* base, int64_t page_stride, const int64_t* table, int64_t tokens,
                 int64_t page, int64_t dim, float* norms) {
    for (int64_t first = 0; first < tokens; first += 2) {
        const uint32_t* line = base + table[first / page] * page_stride + first % page / 2 * TILE;
        __m512 ones = _mm512_setzero_ps(), twos = ones;
        for (int64_t block = 0; block < dim; block += TILE, line += page / 2 * TILE) {
            const __m512i both = _mm512_loadu_si512(line);
            const __m512 one = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            const __m512 two =
                _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xFFFF0000)));
            ones = _mm512_fmadd_ps(one, one, ones);
            twos = _mm512_fmadd_ps(two, two, twos);
        }
        norms[first] = std::sqrt(_mm512_reduce_add_ps(ones));
        if (first + 1 < tokens) norms[first + 1] = std::sqrt(_mm512_reduce_add_ps(twos));
    }
}
#endif

}  // namespace

extern "C" {

// Keys as float32 bits [rows, 2 * pairs, tokens] of whole pages; a word is two dimensions of a
// token.
void read_keys(const uint32_t* pool, const int64_t* strides, int64_t rows, int64_t heads,
               const int64_t* table, int64_t pages, int64_t page, int64_t pairs, uint32_t* out) {
    const int64_t tokens = pages * page;
    for (int64_t row = 0; row < rows; ++row) {
        const uint32_t* base = pool + base_of(strides, row, heads);
        for (int64_t first = 0; first < tokens; first += TILE) {
            const uint32_t* line = base + table[first / page] * strides[1] + first % page * pairs;
            uint32_t* __restrict to = out + row * 2 * pairs * tokens + first;
            for (int64_t pair = 0; pair < pairs; ++pair, line += TILE, to += 2 * tokens) {
                for (int64_t i = 0; i < TILE; ++i) {
                    to[i] = line[i] << 16;
                    to[tokens + i] = line[i] & 0xFFFF0000u;
                }
            }
        }
    }
}

// Values as float32 bits [rows, tokens, dim] of whole pages; a word is one dimension of two tokens.
void read_values(const uint32_t* pool, const int64_t* strides, int64_t rows, int64_t heads,
                 const int64_t* table, int64_t pages, int64_t page, int64_t dim, uint32_t* out) {
    const int64_t tokens = pages * page;
    for (int64_t row = 0; row < rows; ++row) {
        const uint32_t* base = pool + base_of(strides, row, heads);
        for (int64_t first = 0; first < tokens; first += 2) {
            const uint32_t* line =
                base + table[first / page] * strides[1] + first % page / 2 * TILE;
            uint32_t* __restrict to = out + (row * tokens + first) * dim;
            for (int64_t block = 0; block < dim; block += TILE, line += page / 2 * TILE) {
                for (int64_t i = 0; i < TILE; ++i) {
                    to[block + i] = line[i] << 16;
                    to[dim + block + i] = line[i] & 0xFFFF0000u;
                }
            }
        }
    }
}

// Move each row's survivors [rows, count] to the first places of target, in place and in order.
void move_keys(uint32_t* pool, const int64_t* strides, int64_t rows, int64_t heads,
               const int64_t* source, const int64_t* target, const int64_t* survivors,
               int64_t count, int64_t page, int64_t pairs) {
    for (int64_t row = 0; row < rows; ++row) {
        uint32_t* base = pool + base_of(strides, row, heads);
        const int64_t* kept = survivors + row * count;
        for (int64_t first = 0; first < count; first += TILE) {
            const int64_t size = std::min(TILE, count - first);
            const uint32_t* from[TILE];
            bool moved = source[first / page] != target[first / page];
            for (int64_t i = 0; i < size; ++i) {
                const int64_t token = kept[first + i], place = token % page;
                moved |= token != first + i;
                from[i] = base + source[token / page] * strides[1] +
                          place / TILE * TILE * pairs + place % TILE;
            }
            if (!moved) continue;
            uint32_t* to = base + target[first / page] * strides[1] + first % page * pairs;
            for (int64_t at = 0; at < pairs * TILE; at += TILE) {
                for (int64_t i = 0; i < size; ++i) to[at + i] = from[i][at];
            }
        }
    }
}

// As move_keys; two tokens share each line, and a word holds two dimensions of both. If the
// survivors are odd in number, the last one is stored twice.
void move_values(uint64_t* pool, const int64_t* strides, int64_t rows, int64_t heads,
                 const int64_t* source, const int64_t* target, const int64_t* survivors,
                 int64_t count, int64_t page, int64_t blocks) {
    constexpr int64_t LINE = TILE / 2;
    constexpr uint64_t LOW = 0x0000FFFF0000FFFFull;
    const int64_t block = page / 2 * LINE;
    for (int64_t row = 0; row < rows; ++row) {
        uint64_t* base = pool + base_of(strides, row, heads);
        const int64_t* kept = survivors + row * count;
        for (int64_t first = 0; first < count; first += 2) {
            const int64_t one = kept[first], two = kept[std::min(first + 1, count - 1)];
            const uint64_t* a = base + source[one / page] * strides[1] + one % page / 2 * LINE;
            const uint64_t* b = base + source[two / page] * strides[1] + two % page / 2 * LINE;
            uint64_t* to = base + target[first / page] * strides[1] + first % page / 2 * LINE;
            if (a == b && a == to && one % 2 == 0 && two == one + 1) continue;
            const int shift_a = 16 * (one % 2), shift_b = 16 * (two % 2);
            for (int64_t start = 0; start < blocks * block; start += block) {
                uint64_t line[LINE];  // a copy: the line may be one of those that are read
                for (int64_t i = 0; i < LINE; ++i) {
                    line[i] = ((a[start + i] >> shift_a) & LOW) |
                              (((b[start + i] >> shift_b) & LOW) << 16);
                }
                std::memcpy(to + start, line, sizeof line);
            }
        }
    }
}

// For each row of weights [rows, tokens], how many of the largest hold the mass, and for the first
// lossy rows what the largest capacities [questions] leave: lost [lossy, questions].
void count_and_lose(const float* weights, int64_t rows, int64_t tokens, double mass,
                    const int64_t* capacities, int64_t questions, int64_t lossy, int64_t* needed,
                    double* lost) {
    Counter counter;
    for (int64_t row = 0; row < rows; ++row) {
        counter.count(weights + row * tokens, tokens, mass, capacities,
                      row < lossy ? questions : 0, needed + row, lost + row * questions);
    }
}

// The survivors of each row of scores [rows, tokens], ascending: kept [rows, keep]. The quota must
// fit. Of equal scores the earlier tokens are kept.
void select_rows(const float* scores, int64_t rows, int64_t tokens, int64_t keep, int64_t prefix,
                 int64_t recent, int64_t page, int64_t quota, int64_t* kept) {
    std::vector<uint32_t> ranks(tokens), best(page);
    std::vector<uint8_t> chosen(tokens);
    std::vector<int64_t> counts(BINS);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < tokens; ++i) {
            ranks[i] = rank_of(scores[row * tokens + i]);
            chosen[i] = i < prefix || i >= tokens - recent;
        }
        for (int64_t first = 0; quota > 0 && first < tokens; first += page) {
            const int64_t size = std::min(page, tokens - first), wanted = std::min(quota, size);
            std::copy_n(ranks.begin() + first, size, best.begin());
            std::nth_element(best.begin(), best.begin() + wanted - 1, best.begin() + size,
                             std::greater<uint32_t>());
            const uint32_t least = best[wanted - 1];
            int64_t equal = wanted;
            for (int64_t i = first; i < first + size; ++i) equal -= ranks[i] > least;
            for (int64_t i = first; i < first + size; ++i) {
                if (ranks[i] > least || (ranks[i] == least && equal-- > 0)) chosen[i] = 1;
            }
        }
        int64_t left = keep;
        for (int64_t i = 0; i < tokens; ++i) left -= chosen[i];
        // The rank of the last one to keep, by 11, 11, and 10 bits.
        uint32_t known = 0, mask = 0;
        for (const auto& [shift, bins] : {std::pair{21, 2048u}, {10, 2048u}, {0, 1024u}}) {
            std::fill_n(counts.begin(), bins, 0);
            for (int64_t i = 0; i < tokens; ++i) {
                if (!chosen[i] && (ranks[i] & mask) == known) {
                    ++counts[ranks[i] >> shift & (bins - 1)];
                }
            }
            uint32_t bin = bins - 1;
            for (; bin > 0 && counts[bin] < left; --bin) left -= counts[bin];
            known |= bin << shift;
            mask |= (bins - 1) << shift;
        }
        int64_t* to = kept + row * keep;
        for (int64_t i = 0; i < tokens; ++i) {
            if (chosen[i] || ranks[i] > known || (ranks[i] == known && left-- > 0)) *to++ = i;
        }
    }
}

#ifdef __AMX_BF16__
// 0 if the system lets this process use the processor's matrix unit.
int64_t allow_tiles() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // Linux: arch_prctl(2)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

// The score "window": attention of the last n tokens' queries [rows, n, group, dim], each of which
// sees the keys up to its own, largest of the group, mean over the n, times the value norm.
void score_window(const uint32_t* keys, const uint32_t* values, const int64_t* strides,
                  int64_t rows, int64_t heads, const int64_t* table, int64_t tokens, int64_t page,
                  int64_t dim, const float* queries, int64_t n, int64_t group, double scale,
                  float* scores) {
    Tiles tiles;
    Attention attention(n * group, dim, tokens, 1);
    std::vector<float> norms(tokens);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = base_of(strides, row, heads);
        attention.look(queries + row * n * group * dim, keys + at, strides[1], table, page);
        float* score = scores + row * tokens;
        std::fill_n(score, tokens, 0.0f);
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < group; ++j) {
                attention.normalise(i * group + j, tokens - (n - 1 - i), scale);
            }
            float* most = attention.weights(i * group);
            for (int64_t j = 1; j < group; ++j) {
                const float* other = attention.weights(i * group + j);
#pragma omp simd
                for (int64_t t = 0; t < tokens; ++t) most[t] = std::max(most[t], other[t]);
            }
#pragma omp simd
            for (int64_t t = 0; t < tokens; ++t) score[t] += most[t];
        }
        value_norms(values + at, strides[1], table, tokens, page, dim, norms.data());
        for (int64_t t = 0; t < tokens; ++t) score[t] *= norms[t] / n;
    }
}

// For queries [rows, 2, group, dim], the short summary's first: how many of the largest weights
// hold the mass, needed [rows, 2, group], and what the largest capacities [questions] of the short
// one's leave, lost [rows, group, questions].
void measure_rows(const uint32_t* keys, const int64_t* strides, int64_t rows, int64_t heads,
                  const int64_t* table, int64_t tokens, int64_t page, int64_t dim,
                  const float* queries, int64_t group, double scale, double mass,
                  const int64_t* capacities, int64_t questions, int64_t* needed, double* lost) {
    Tiles tiles;
    Attention attention(2 * group, dim, tokens, 3);
    Counter counter;
    for (int64_t row = 0; row < rows; ++row) {
        attention.look(queries + row * 2 * group * dim, keys + base_of(strides, row, heads),
                       strides[1], table, page);
        for (int64_t i = 0; i < 2 * group; ++i) {
            attention.normalise(i, tokens, scale);
            counter.count(attention.weights(i), tokens, mass, capacities, i < group ? questions : 0,
                          needed + row * 2 * group + i, lost + (row * group + i) * questions);
        }
    }
}
#endif

}  // extern "C"
