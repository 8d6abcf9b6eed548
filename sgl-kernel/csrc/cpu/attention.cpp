// Paged causal attention: keys and values are read where they lie, through the page table.
//
// Work is shared out by row, KV head and, of rows with many queries, block of queries. The query heads that share a KV
// head stand beside each other as more queries of it. Softmax is online (Milakov and Gimelshein, 2018), over blocks of
// KEYS keys from first to last, so a row's result depends on nothing but the row.
//
//     few queries     each key times each query, a block's scores at once; values weighted as they come
//     many            keys and values of a block are packed into panels (cpu/tile.h): two matrix products
//
// Latent rows (DeepSeek-AI, "DeepSeek-V2", 2024) are keys whose beginnings are their values.
//
// Pages of eight-bit numbers: a block's keys and values are turned into bfloat16 first, each once. Their scales are
// factors that the sums let through.

#include <algorithm>
#include <cmath>

#include "cpu/stored.h"
#include "cpu/threads.h"
#include "cpu/tile.h"

using namespace mysgl;

namespace {

constexpr long KEYS = 128;
constexpr long QUERIES = 48;    // of a block: four tiles of rows
constexpr long FEW = 8;         // queries that are not worth packing keys for
constexpr long GRAIN = 1 << 15;  // elements of keys, for each block of queries, that are worth another thread

struct Params {
  bf16 *out;  // [tokens, heads * value_dim], dense
  const bf16 *q;
  long q_stride;
  const void *keys, *values;  // [KV slots, kv_heads, dim] of numbers of `format`; of values, the first value_dim count
  const int32_t *table;       // [slots, max_pages]
  long max_pages, page_size;
  const int64_t *slots;    // [rows]
  const int32_t *ends;     // [rows] keys of the row, its new ones included
  const int32_t *queries;  // [rows] new tokens
  const int64_t *firsts;   // [rows] where they begin among the tokens
  long rows, heads, kv_heads, dim, value_dim, window;
  float scale, cap;
  int format;         // of stored numbers: cpu/stored.h
  float value_scale;  // what attended values are multiplied by
  bool alike;  // a token's result is the same however many others of its row are new
  bool chunked;  // of a query's window, only the part that begins at a multiple of `window`
  const float *sinks;  // [heads] scores of a key whose value is zero, or null: there is none

  long group() const { return heads / kv_heads; }
};

struct Softmax {
  float top = -INFINITY, total = 0;

  // Turns scores of `count` keys, a multiple of LANES, into weights. Returns what earlier sums are to be multiplied by.
  float weigh(float *scores, long count) {
    Floats most = load<Floats>(scores);
    for (long j = LANES; j < count; j += LANES) most = max(load<Floats>(scores + j), most);
    const float before = top, now = largest(most);
    top = now > top ? now : top;
    if (top == -INFINITY) {  // nothing is seen yet, unless it was NaN
      for (long j = 0; j < count; j += LANES) {
        Floats s = load<Floats>(scores + j);
        store(scores + j, s != s ? s : Floats{});
      }
      return 1;
    }
    Floats sums = {};
    for (long j = 0; j < count; j += LANES) {
      Floats w = exp(load<Floats>(scores + j) - top);
      sums += w;
      store(scores + j, w);
    }
    const float factor = before == top ? 1 : std::exp(before - top);
    total = total * factor + sum(sums);
    return factor;
  }
};

// One row and KV head. Query i is query head i % group of new token i / group.
struct Row {
  const Params &p;
  long row, head;

  long query_count() const { return p.queries[row] * p.group(); }
  // Keys before this position are all that query i sees, and those from `begin` on.
  long end(long i) const { return p.ends[row] - p.queries[row] + i / p.group() + 1; }
  long begin(long i) const {
    if (p.chunked) return (end(i) - 1) / p.window * p.window;
    return p.window && end(i) > p.window ? end(i) - p.window : 0;
  }
  // Of query i, before the first key.
  Softmax softmax(long i) const {
    return p.sinks ? Softmax{p.sinks[head * p.group() + i % p.group()], 1} : Softmax{};
  }
  const bf16 *query(long i) const {
    return p.q + (p.firsts[row] + i / p.group()) * p.q_stride + (head * p.group() + i % p.group()) * p.dim;
  }
  bf16 *out(long i) const {
    return p.out + ((p.firsts[row] + i / p.group()) * p.heads + head * p.group() + i % p.group()) * p.value_dim;
  }
  // Elements before the key of a position, in keys and in values.
  long offset(long position) const {
    long page = p.table[p.slots[row] * p.max_pages + position / p.page_size];
    return ((page * p.page_size + position % p.page_size) * p.kv_heads + head) * p.dim;
  }
};

// Where the keys and values of some positions are.
struct Block {
  long offsets[KEYS];  // elements before the key of each, and before its value
  const bf16 *keys, *values;

  // Of positions [start, start + count). Pages behind the window may be anybody's: what stands for positions before
  // `seen` weighs nothing, but must be a number.
  Block(const Row &row, long start, long count, long seen) {
    const Params &p = row.p;
    for (long j = 0; j < count; j++) offsets[j] = row.offset(std::max(start + j, seen));
    if (p.format == BF16) {
      keys = static_cast<const bf16 *>(p.keys), values = static_cast<const bf16 *>(p.values);
      return;
    }
    bf16 *wide_keys = scratch<bf16>(4, KEYS * p.dim), *wide_values = scratch<bf16>(5, KEYS * p.dim);
    read_stored(wide_keys, p.keys, offsets, count, p.dim, p.format);
    read_stored(wide_values, p.values, offsets, count, p.dim, p.format);
    for (long j = 0; j < count; j++) offsets[j] = j * p.dim;
    keys = wide_keys, values = wide_values;
  }
};

Floats scaled(const Params &p, Floats score) {
  score *= p.scale;
  return p.cap ? p.cap * tanh(score / p.cap) : score;
}

// Scores of keys [0, count) of a block that begins at `start`; those that query i does not see are -inf.
void hide(float *scores, long count, long start, const Row &row, long i) {
  const Ints numbers = lanes([](int i) { return i; });
  const int32_t begin = int32_t(row.begin(i) - start), end = int32_t(row.end(i) - start);
  for (long j = 0; j < count; j += LANES) {
    Ints at = numbers + int32_t(j);
    Ints seen = (at >= begin) & (at < end);
    store(scores + j, seen ? load<Floats>(scores + j) : splat(-INFINITY));
  }
}

// Few queries: a row that decodes. VECTORS: pairs of a head in vectors.
template <int VECTORS>
void attend_few(const Row &row, long queries) {
  const Params &p = row.p;
  Floats sums[FEW][2 * VECTORS] = {};  // of even and of odd elements in turn
  Softmax softmax[FEW];
  for (long i = 0; i < queries; i++) softmax[i] = row.softmax(i);
  alignas(64) float scores[FEW][KEYS];
  const long last = row.end(queries - 1);
  for (long start = row.begin(0) / KEYS * KEYS; start < last; start += KEYS) {
    const long count = last - start < KEYS ? last - start : KEYS;
    const Block block(row, start, count, row.begin(0));
    for (long j = 0; j < count; j += LANES) {
      const long some = count - j < LANES ? count - j : LANES;
      for (long i = 0; i < queries; i++) {
        const bf16 *query = row.query(i);
        Pairs x[VECTORS];
        for (int d = 0; d < VECTORS; d++) x[d] = load<Pairs>(query + 2 * LANES * d);
        Floats products[LANES];
        for (long l = 0; l < LANES; l++) {
          const bf16 *key = block.keys + block.offsets[j + (l < some ? l : 0)];
          products[l] = Floats{};
          for (int d = 0; d < VECTORS; d++) products[l] = dot(products[l], x[d], load<Pairs>(key + 2 * LANES * d));
        }
        store(scores[i] + j, scaled(p, mysgl::sums(products)));
      }
    }
    const long whole = (count + LANES - 1) / LANES * LANES;
    for (long i = 0; i < queries; i++) {
      hide(scores[i], whole, start, row, i);
      const float factor = softmax[i].weigh(scores[i], whole);
      Floats acc[2 * VECTORS];
      for (int d = 0; d < 2 * VECTORS; d++) acc[d] = sums[i][d] * factor;
      for (long j = 0; j < count; j++) {
        const bf16 *value = block.values + block.offsets[j];
        const Floats weight = splat(scores[i][j]);
        for (int d = 0; d < VECTORS; d++) {
          Pairs v = load<Pairs>(value + 2 * LANES * d);
          acc[2 * d] += weight * low_floats(v);
          acc[2 * d + 1] += weight * high_floats(v);
        }
      }
      for (int d = 0; d < 2 * VECTORS; d++) sums[i][d] = acc[d];
    }
  }
  for (long i = 0; i < queries; i++)
    for (int d = 0; d < VECTORS; d++) {
      Floats low = sums[i][2 * d] / softmax[i].total * p.value_scale;
      Floats high = sums[i][2 * d + 1] / softmax[i].total * p.value_scale;
      constexpr Ints first = lanes([](int lane) { return lane / 2 + lane % 2 * LANES; });
      bf16 *to = row.out(i) + 2 * LANES * d;
      store_bf16(to, __builtin_shuffle(low, high, first));
      store_bf16(to + LANES, __builtin_shuffle(low, high, first + LANES / 2));
    }
}

// panels [columns / 32][pairs of dim][32] of the keys of a block; columns after `count` repeat a key.
void pack_keys(Pairs *to, const Block &block, long dim, long columns, long count) {
  const long pairs = dim / 2;
  for (long c0 = 0; c0 < columns; c0 += LANES) {
    uint32_t *panel = reinterpret_cast<uint32_t *>(to) + c0 / COLUMNS * COLUMNS * pairs + c0 % COLUMNS;
    for (long k0 = 0; k0 < pairs; k0 += LANES) {
      Pairs tile[LANES];
      for (long c = 0; c < LANES; c++)
        tile[c] = load<Pairs>(block.keys + block.offsets[c0 + c < count ? c0 + c : 0] + 2 * k0);
      transpose(tile);
      for (long k = 0; k < LANES; k++) store(panel + (k0 + k) * COLUMNS, tile[k]);
    }
  }
}

// panels [dim / 32][pairs of keys][32] of the values of a block; keys after `count` are zeros.
void pack_values(Pairs *to, const Block &block, long dim, long pairs, long count) {
  const long *offsets = block.offsets;
  for (long k = 0; k < pairs; k++)
    for (long d = 0; d < dim; d += LANES) {
      const bf16 *values = block.values + d;
      Pairs even = {}, odd = {};
      if (2 * k < count) even = __builtin_convertvector(load<Halves>(values + offsets[2 * k]), Pairs);
      if (2 * k + 1 < count) odd = __builtin_convertvector(load<Halves>(values + offsets[2 * k + 1]), Pairs);
      store(reinterpret_cast<uint32_t *>(to) + d / COLUMNS * COLUMNS * pairs + k * COLUMNS + d % COLUMNS,
            even | odd << 16);
    }
}

// Queries [first, first + count) of a row, count <= QUERIES.
void attend_many(const Row &row, long first, long count) {
  const Params &p = row.p;
  const long dim = p.dim, value_dim = p.value_dim;
  bf16 *queries = scratch<bf16>(0, QUERIES * dim);
  Pairs *panels = scratch<Pairs>(1, KEYS * dim / 2 / LANES);
  Floats *sums = scratch<Floats>(2, QUERIES * value_dim / LANES);  // [value_dim / 32][QUERIES][PARTS]
  float *scores = scratch<float>(3, QUERIES * KEYS);
  alignas(64) bf16 weights[ROWS * KEYS];
  Softmax softmax[QUERIES];
  for (long i = 0; i < count; i++) softmax[i] = row.softmax(first + i);
  for (long i = 0; i < count; i++) std::memcpy(queries + i * dim, row.query(first + i), dim * sizeof(bf16));
  for (long i = 0; i < QUERIES * value_dim / LANES; i++) sums[i] = Floats{};
  const long last = row.end(first + count - 1);
  for (long start = row.begin(first) / KEYS * KEYS; start < last; start += KEYS) {
    const long keys = last - start < KEYS ? last - start : KEYS, columns = (keys + COLUMNS - 1) / COLUMNS * COLUMNS;
    const Block block(row, start, keys, row.begin(first));
    pack_keys(panels, block, dim, columns, keys);
    for (long i = 0; i < count; i += ROWS) {
      const int some = int(count - i < ROWS ? count - i : ROWS);
      for (long c = 0; c < columns; c += COLUMNS) {
        Tile tile = {};
        multiply(some, tile, queries + i * dim, dim, panels + c / LANES * dim / 2, dim / 2);
        for (int m = 0; m < some; m++)
          for (int n = 0; n < PARTS; n++) store(scores + (i + m) * KEYS + c + n * LANES, scaled(p, tile[m][n]));
      }
    }
    pack_values(panels, block, value_dim, columns / 2, keys);
    for (long i = 0; i < count; i += ROWS) {
      const int some = int(count - i < ROWS ? count - i : ROWS);
      float factors[ROWS];
      for (int m = 0; m < some; m++) {
        float *own = scores + (i + m) * KEYS;
        if (row.end(first + i + m) < start + columns || row.begin(first + i + m) > start)
          hide(own, columns, start, row, first + i + m);
        factors[m] = softmax[i + m].weigh(own, columns);
        for (long j = 0; j < columns; j += LANES) store_bf16(weights + m * KEYS + j, load<Floats>(own + j));
      }
      for (long d = 0; d < value_dim / COLUMNS; d++) {
        Floats(*sum)[PARTS] = reinterpret_cast<Floats(*)[PARTS]>(sums) + d * QUERIES + i;
        Tile tile;
        for (int m = 0; m < some; m++)
          for (int n = 0; n < PARTS; n++) tile[m][n] = sum[m][n] * factors[m];
        multiply(some, tile, weights, KEYS, panels + d * columns / 2 * PARTS, columns / 2);
        for (int m = 0; m < some; m++)
          for (int n = 0; n < PARTS; n++) sum[m][n] = tile[m][n];
      }
    }
  }
  for (long i = 0; i < count; i++)
    for (long d = 0; d < value_dim; d += LANES)
      store_bf16(row.out(first + i) + d,
                 sums[(d / COLUMNS * QUERIES + i) * PARTS + d % COLUMNS / LANES] / softmax[i].total * p.value_scale);
}

void attend(const Row &row, long block) {
  const long queries = row.query_count();
  // Keys of latent rows are so wide that even few queries are worth packing them.
  if (queries > FEW || row.p.alike || row.p.value_dim != row.p.dim) {
    const long first = block * QUERIES;
    attend_many(row, first, queries - first < QUERIES ? queries - first : QUERIES);
    return;
  }
  constexpr int WHOLE = PARTS / 2;  // vectors of 32 numbers in pairs
  switch (row.p.dim / 32) {
    case 1: return attend_few<1 * WHOLE>(row, queries);
    case 2: return attend_few<2 * WHOLE>(row, queries);
    case 3: return attend_few<3 * WHOLE>(row, queries);
    case 4: return attend_few<4 * WHOLE>(row, queries);
    case 8: return attend_few<8 * WHOLE>(row, queries);
  }
}

}  // namespace

extern "C" void mysgl_attention(bf16 *out, const bf16 *q, long q_stride, const void *keys, const void *values,
                                const int32_t *table, long max_pages, long page_size, const int64_t *slots,
                                const int32_t *ends, const int32_t *queries, const int64_t *firsts,
                                const int64_t *items, long count, long rows, long heads, long kv_heads, long dim,
                                long value_dim, long window, float scale, float cap, int format, float value_scale, int alike, int chunked,
                                const float *sinks) {
  const Params p{out,     q,      q_stride, keys,  values,   table, max_pages, page_size, slots, ends,   queries,
                 firsts,  rows,   heads,    kv_heads, dim,   value_dim, window, scale,    cap,    format,
                 value_scale, alike != 0, chunked != 0, sinks};
  // items [count, 2]: row and block of queries, longest first; each for every KV head.
  long elements = 0;
  for (long i = 0; i < count; i++) elements += ends[items[2 * i]] * dim * (queries[items[2 * i]] > 1 ? QUERIES : 1);
  const long chunk = count && elements < GRAIN * count ? GRAIN * count / (elements + 1) + 1 : 1;
  share(count * kv_heads, chunk, [&](long first, long end) {
    for (long i = first; i < end; i++)
      attend(Row{p, items[i / kv_heads * 2], i % kv_heads}, items[i / kv_heads * 2 + 1]);
  });
}
