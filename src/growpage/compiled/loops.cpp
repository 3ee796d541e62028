// Loops over cache pages and attention weights, where torch would make many passes or sort.
//
// Rows of pages are pairs of a layer and a KV head, in that order; strides are the words from one
// layer, one page, and one head to the next. Pages are of the layout "amx": keys as
// [tokens / 16][dim / 2][16 tokens][2], values as [dim / 16][tokens / 2][16 dims][2 tokens].

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace {

constexpr int64_t TILE = 16;
constexpr int64_t BINS = 2048;
constexpr uint32_t SIGN = 0x80000000u;

// The bits of a float; numbers from 0 on are in the order of their bits.
uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

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
//
// A first pass counts and adds up by leading bits; only the weights that share them with the place
// that is sought are sorted.
void count_and_lose(const float* weights, int64_t rows, int64_t tokens, double mass,
                    const int64_t* capacities, int64_t questions, int64_t lossy, int64_t* needed,
                    double* lost) {
    std::vector<int64_t> counts(BINS);
    std::vector<double> sums(BINS);
    std::vector<float> same(tokens);
    for (int64_t row = 0; row < rows; ++row) {
        const float* of = weights + row * tokens;
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
        const int64_t asked = row < lossy ? questions : 0;
        if (!sound) {
            needed[row] = 1;
            std::fill_n(lost + row * questions, asked, std::numeric_limits<double>::quiet_NaN());
            continue;
        }
        for (int64_t question = -1; question < asked; ++question) {  // -1 is the mass
            const auto enough = [&](double held, int64_t taken) {
                return question < 0 ? held >= mass : taken >= capacities[question];
            };
            double held = 0;
            int64_t taken = 0, bin = high;
            for (; bin >= low && !enough(held + sums[bin], taken + counts[bin]); --bin) {
                held += sums[bin];
                taken += counts[bin];
            }
            if (bin >= low) {
                int64_t found = 0;
                for (int64_t i = 0; i < tokens; ++i) {
                    if (bin_of(of[i]) == bin) same[found++] = of[i];
                }
                std::sort(same.begin(), same.begin() + found, std::greater<float>());
                for (int64_t i = 0; i < found && !enough(held, taken); ++i, ++taken) held += same[i];
            }
            if (question < 0) needed[row] = std::max<int64_t>(taken, 1);
            else lost[row * questions + question] = std::max(1 - held, 0.0);
        }
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

}  // extern "C"
