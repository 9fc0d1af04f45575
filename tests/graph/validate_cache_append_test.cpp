// The rules of cache_append, and of the caches that sdpa reads.
#include <cmath>

#include "graph/broken_graphs.h"

namespace heddle::graph {
namespace {

using samples::cache_append;
using samples::cache_append_of_codes;
#define APPEND samples::append_of(g)

Graph sdpa_of_codes() {
  Graph g = samples::sdpa();
  Sdpa& op = samples::sdpa_of(g);
  g[op.k].dtype = DataType::u8, g[op.v].dtype = DataType::i8;
  g[op.k] = tensor("k", {2, 2, 64, 16}, DataType::u8);
  op.k_scale = g.add(tensor("k_scale", {1, 2, 1, 1}, DataType::f32));
  op.v_scale = g.add(tensor("v_scale", {1, 2, 1, 32}, DataType::f32));
  return g;
}

INSTANTIATE_TEST_SUITE_P(
    CacheAppends, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no q", cache_append, WHEN(APPEND.q = kNone), ANS, "requires a tensor for Q"},
        Broken{"k alone", cache_append_of_codes, WHEN(APPEND.v = kNone), ANS, "K is set without V"},
        Broken{"one cache", cache_append, WHEN(APPEND.present_v = kNone), ANS,
               "present_k is set without present_v"},
        Broken{"no caches", cache_append_of_codes,
               WHEN(APPEND.present_k = APPEND.present_v = kNone), ANS,
               "K and V are set without present_k"},
        Broken{"q type", cache_append, WHEN(g[APPEND.q].dtype = DataType::f64), IV,
               "has data type f64"},
        Broken{"q rank", cache_append, WHEN(g.tensors[0] = tensor("qkv", {2, 2, 384})), ANS,
               "The dim for Q is invalid"},
        Broken{"few packed heads", cache_append, WHEN(g.tensors[0] = tensor("qkv", {2, 4, 2, 32})),
               IV, "Q has 4 heads, expected more than twice the 2 of the caches"},
        Broken{"k dims", cache_append_of_codes, WHEN(g[APPEND.k] = tensor("k", {2, 2, 3, 32})), IV,
               "has dims [2, 2, 3, 32], expected [2, 2, 2, 32]"},
        Broken{"cache type", cache_append, WHEN(g[APPEND.present_k].dtype = DataType::f32), IV,
               "has data type f32, expected bf16"},
        Broken{"codes without scales", cache_append_of_codes, WHEN(APPEND.k_scale = kNone), ANS,
               "present_k is i8, codes that need k_scale"},
        Broken{"scales of numbers", cache_append,
               WHEN(APPEND.v_scale = g.add(tensor("s", {1, 1, 1, 1}, DataType::f32))), ANS,
               "present_v is bf16, numbers that take no v_scale"},
        Broken{"scale dims", cache_append_of_codes,
               WHEN(g[APPEND.k_scale] = tensor("s", {1, 2, 1, 16}, DataType::f32)), IV,
               "expected [1, 2, 1, 32] where dims of 1 broadcast"},
        Broken{"past type", cache_append_of_codes, WHEN(g[APPEND.past_v].dtype = DataType::f8e4m3),
               IV, "has data type f8e4m3, expected i8"},
        Broken{"past dims", cache_append, WHEN(g[APPEND.past_v] = tensor("p", {2, 3, 64, 32})), IV,
               "has dims [2, 3, 64, 32], expected [2, 2, 64, 32]"},
        Broken{"past without lengths", cache_append, WHEN(APPEND.seq_len_kv = kNone), ANS,
               "past_k is set without seq_len_kv"},
        Broken{"cache rows", cache_append,
               WHEN(g[APPEND.present_v].dims = {2, 2, 65, 32};
                    g[APPEND.present_v].strides = {4160, 2080, 32, 1}),
               IV, "present_k has 64 rows and present_v 65"},
        Broken{"ring of pages", cache_append,
               WHEN(APPEND.ring = true; APPEND.page_table_k = APPEND.page_table_v =
                                            g.add(tensor("t", {2, 1, 4, 1}, DataType::i32))),
               IV, "ring is set beside page tables"},
        Broken{"rows past counting", cache_append,
               WHEN(g[APPEND.present_v].dims = {2, int64_t{1} << 62, 64, 32};
                    g[APPEND.present_v].strides = {4096, 2048, 32, 1}),
               IV, "present_v has dims [2, 4611686018427387904, 64, 32], expected each from 1 to"},
        Broken{"one table", cache_append,
               WHEN(APPEND.page_table_k = g.add(tensor("t", {2, 1, 4, 1}, DataType::i32))), ANS,
               "page_table_k is set without page_table_v"},
        Broken{"table type", cache_append,
               WHEN(APPEND.page_table_k = APPEND.page_table_v = g.add(tensor("t", {2, 1, 4, 1},
                                                                             DataType::i64))),
               IV, "has data type i64, expected i32"},
        Broken{"lengths dims", cache_append,
               WHEN(g[APPEND.seq_len_kv] = tensor("l", {3, 1, 1, 1}, DataType::i32)), IV,
               "expected [2, 1, 1, 1]"},
        Broken{"lowest lengths offset", cache_append, WHEN(APPEND.seq_len_kv_offset = INT64_MIN),
               IV, "seq_len_kv_offset is -9223372036854775808, expected 32 bits"},
        Broken{"lengths offset", cache_append, WHEN(APPEND.seq_len_kv_offset = int64_t{1} << 40),
               IV, "seq_len_kv_offset is 1099511627776, expected 32 bits"},
        Broken{"norm dims", cache_append, WHEN(g[APPEND.q_norm] = tensor("w", {1, 1, 1, 16})), IV,
               "expected [1, 1, 1, 32]"},
        Broken{"epsilon", cache_append, WHEN(APPEND.k_epsilon = std::nan("")), IV,
               "k_epsilon is nan, expected a finite number"},
        Broken{"cosines alone", cache_append, WHEN(APPEND.sines = kNone), ANS,
               "cosines are set without sines"},
        Broken{"wide tables", cache_append,
               WHEN(g[APPEND.cosines].dims = g[APPEND.sines].dims = {64, 1, 1, 17}), IV,
               "expected [rows, 1, 1, up to 16]"},
        Broken{"positions without tables", cache_append,
               WHEN(APPEND.cosines = APPEND.sines = kNone;
                    APPEND.positions = g.add(tensor("p", {2, 1, 2, 1}, DataType::i64))),
               ANS, "positions are set without tables"},
        Broken{"one position of all rows", cache_append,
               WHEN(APPEND.positions = g.add(tensor("p", {2, 1, 1, 1}, DataType::i64))), IV,
               "has dims [2, 1, 1, 1], expected [2, 1, 2, 1]"},
        Broken{"results", cache_append,
               WHEN(APPEND = CacheAppend{.q = APPEND.q,
                                         .cosines = APPEND.cosines,
                                         .sines = APPEND.sines}),
               ANS, "no result is set"},
        Broken{"q_out type", cache_append, WHEN(g[APPEND.q_out].dtype = DataType::f32), IV,
               "has data type f32, expected bf16"},
        Broken{"lengths_q type", cache_append, WHEN(g[APPEND.lengths_q].dtype = DataType::i64), IV,
               "has data type i64, expected i32"},
        Broken{"ragged", cache_append,
               WHEN(g[APPEND.q].ragged_offset = g.add(tensor("o", {3, 1, 1, 1}, DataType::i32))),
               NS, "Q is ragged, expected a dense tensor"}}));

INSTANTIATE_TEST_SUITE_P(
    CachesOfSdpa, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"codes without scales", sdpa_of_codes, WHEN(SDPA.k_scale = kNone), ANS,
               "K is u8, codes that need k_scale"},
        Broken{"scales of numbers", sdpa,
               WHEN(SDPA.v_scale = g.add(tensor("s", {1, 1, 1, 1}, DataType::f32))), ANS,
               "V is bf16, numbers that take no v_scale"},
        Broken{"scores dims", sdpa,
               WHEN(SDPA.scores = g.add(tensor("scores", {2, 8, 64, 63}, DataType::f32))), IV,
               "has dims [2, 8, 64, 63], expected [2, 8, 64, 64]"},
        Broken{"scores type", sdpa,
               WHEN(SDPA.scores = g.add(tensor("scores", {2, 8, 64, 64}, DataType::f16))), IV,
               "has data type f16, expected bf16 or f32"},
        Broken{"scores of nothing", sdpa, WHEN(SDPA.scores_after_softmax = true), ANS,
               "scores_after_softmax is set without scores"},
        Broken{"codes of half a head", sdpa_of_codes,
               WHEN(g[SDPA.k] = tensor("k", {2, 2, 64, 8}, DataType::u8)), IV,
               "Q has head dim 32 and K 16"},
        Broken{"codes in a backward", sdpa_backward, WHEN(g[BACKWARD.k].dtype = DataType::i8), IV,
               "has data type i8, expected bf16"},
        Broken{"keys past the rows", sdpa, WHEN(SDPA.max_seq_len_kv = 65), IV,
               "max_seq_len_kv is 65, expected 1 to 64"},
        Broken{"a ring of unknown length", sdpa, WHEN(SDPA.ring_kv = true), ANS,
               "ring_kv is set without max_seq_len_kv"},
        Broken{"no keys", sdpa, WHEN(SDPA.ring_kv = true; SDPA.max_seq_len_kv = 0), IV,
               "max_seq_len_kv is 0, expected 1 to"},
        Broken{"a ring of pages", sdpa,
               WHEN(SDPA.page_table_k = g.add(tensor("t", {2, 1, 4, 1}, DataType::i32));
                    SDPA.ring_kv = true),
               NS, "ring_kv is set beside page tables"}}));

TEST(CacheAppend, MakesWhatItIsNotTold) {
  Graph g = cache_append();
  ASSERT_TRUE(validate(g).is_ok()) << validate(g).message();
  const CacheAppend& op = samples::append_of(g);
  EXPECT_EQ(g[op.q_out].dims, (Dims{2, 8, 2, 32}));
  EXPECT_EQ(g[op.present_v].dims, (Dims{2, 2, 64, 32}));
  EXPECT_EQ(g[op.lengths_kv].dims, (Dims{2, 1, 1, 1}));
}

}  // namespace
}  // namespace heddle::graph
