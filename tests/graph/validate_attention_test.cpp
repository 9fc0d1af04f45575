// The rules of sdpa and sdpa_backward.
#include "graph/broken_graphs.h"

namespace heddle::graph {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Attention, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no q", sdpa, WHEN(SDPA.q = kNone), ANS, "requires a tensor for Q"},
        Broken{"no o", sdpa, WHEN(SDPA.o = kNone), ANS, "requires a tensor for O"},
        Broken{"rank", sdpa, WHEN(g.tensors[0] = tensor("q", {2, 8, 64})), ANS,
               "The dim for Q is invalid"},
        Broken{"o rank", sdpa, WHEN(g[SDPA.o].dims = {2, 8, 64}), ANS, "The dim for O is invalid"},
        Broken{"last stride", sdpa, WHEN(g.tensors[1].strides = {8192, 4096, 1, 64}), NS,
               "The stride for the last dimension corresponding to the embedding size per head "
               "should be 1 for K"},
        Broken{"heads", sdpa, WHEN(g.tensors[2] = tensor("v", {2, 3, 64, 32})), NS,
               "For group-query attention, number of heads for key and query must be a factor of "
               "number of heads for query"},
        Broken{"head dims differ", sdpa, WHEN(g.tensors[1] = tensor("k", {2, 2, 64, 64})), IV,
               "Q has head dim 32 and K 64"},
        Broken{"batch", sdpa, WHEN(g.tensors[1] = tensor("k", {1, 2, 64, 32})), IV,
               "expected the same batch"},
        Broken{"kv length", sdpa, WHEN(g.tensors[1] = tensor("k", {2, 2, 65, 32})), IV,
               "expected the same sequence length"},
        Broken{"types differ", sdpa, WHEN(g.tensors[2].dtype = DataType::f16), IV,
               "has data type f16, expected bf16"},
        Broken{"integer q", sdpa, WHEN(g.tensors[0].dtype = DataType::i32), IV,
               "has data type i32, expected f16, bf16, f32 or f64"},
        Broken{"fp8 q", sdpa, WHEN(g.tensors[0].dtype = DataType::f8e4m3), IV,
               "has data type f8e4m3"},
        Broken{"o dims", sdpa, WHEN(g[SDPA.o].dims = {2, 8, 64, 64}), IV,
               "expected [2, 8, 64, 32]"},
        Broken{
            "stats type", sdpa, WHEN(g[SDPA.stats].dtype.reset()), IV,
            "Stats of sdpa 'attention', tensor 'stats' (uid 5), has data type bf16, expected f32"},
        Broken{"stats dims", sdpa, WHEN(g[SDPA.stats].dims = {2, 8, 64, 2}), IV,
               "expected [2, 8, 64, 1]"},
        Broken{"log2 without stats", sdpa, WHEN(SDPA.stats = kNone; SDPA.stats_use_log2 = true),
               ANS, "stats_use_log2"},
        Broken{"two scales", sdpa,
               WHEN(attention(g).attn_scale_tensor = scalar(g, "s", DataType::f32)), ANS,
               "attn_scale with tensor and value cannot be set at the same time."},
        Broken{"infinite scale", sdpa,
               WHEN(attention(g).attn_scale = std::numeric_limits<double>::infinity()), IV,
               "attn_scale is inf"},
        Broken{"scale beyond f32", sdpa, WHEN(attention(g).attn_scale = 1e39), IV,
               "attn_scale is 1e+39, expected a finite number of f32"},
        Broken{"boolean bias", sdpa,
               WHEN(attention(g).bias = g.add(tensor("bias", {1, 1, 64, 64}, DataType::boolean))),
               NS, "Bias mask data type cannot be boolean"},
        Broken{"bias dims", sdpa, WHEN(attention(g).bias = g.add(tensor("bias", {2, 2, 64, 64}))),
               IV, "expected [2, 8, 64, 64] where dims of 1 broadcast"},
        Broken{"padding without lengths", sdpa, WHEN(attention(g).padding_mask = true), ANS,
               "Padding mask requires seq_len_q and seq_len_kv to be set"},
        Broken{"lengths without padding", sdpa, WHEN(give_lengths(g)), ANS,
               "seq_len_q and seq_len_kv needs to be set only if padding mask is enabled."},
        Broken{"length dims", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g[attention(g).seq_len_q].dims = {1, 2, 1, 1}),
               IV, "expected [2, 1, 1, 1]"},
        Broken{"length type", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g[attention(g).seq_len_q].dtype = DataType::f32),
               IV, "expected i32 or i64"},
        Broken{"both forms of lengths", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    attention(g).cu_seq_len_q = attention(g).seq_len_q),
               IV, "seq_len_q and cu_seq_len_q are both set"},
        Broken{"cumulative dims", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    std::swap(attention(g).cu_seq_len_q, attention(g).seq_len_q)),
               IV, "expected [3, 1, 1, 1]"},
        Broken{"ragged without padding", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::i32))),
               NS, "Ragged offsets are only supported with padding mask."},
        Broken{"totals without packing", sdpa, WHEN(attention(g).max_total_seq_len_q = 5), NS,
               "max_total_seq_len_q is only supported with packed layout"},
        Broken{"right bound", sdpa, WHEN(attention(g).right_bound = -1), IV,
               "Right bound needs to be larger than or equal to zero"},
        Broken{"left bound", sdpa, WHEN(attention(g).left_bound = 0), IV,
               "Left bound (Sliding window length) should be greater than zero when set"},
        Broken{"bottom right, long q", sdpa,
               WHEN(g.tensors[0] = tensor("q", {2, 8, 65, 32});
                    attention(g).diagonal_alignment = DiagonalAlignment::bottom_right),
               NS, "Bottom right causal mask does not support max_s_q > max_s_kv."},
        Broken{"window, long q", sdpa,
               WHEN(g.tensors[0] = tensor("q", {2, 8, 65, 32}); attention(g).left_bound = 3), NS,
               "Sliding window attention is only supported with max_s_q <= max_s_kv."},
        Broken{"alibi", sdpa,
               WHEN(attention(g).alibi_mask = true; attention(g).right_bound.reset()), NS,
               "When alibi mask is used, diagonal_band_right_bound needs to be set to 0."},
        Broken{"block mask type", sdpa,
               WHEN(attention(g).block_mask = g.add(tensor("m", {2, 8, 1, 1}, DataType::i32))), IV,
               "expected u8"},
        Broken{"block mask dims", sdpa,
               WHEN(attention(g).block_mask = g.add(tensor("m", {2, 8, 64, 1}, DataType::u8))), IV,
               "expected [2, 8, 1, 1]"},
        Broken{"sink dims", sdpa,
               WHEN(attention(g).sink = g.add(tensor("sink", {8, 1, 1, 1}, DataType::f32))), IV,
               "expected [1, 8, 1, 1]"},
        Broken{"prefolded with scale", sdpa, WHEN(SDPA.attn_scale_prefolded = true), IV,
               "attn_scale_prefolded is set and so is attn_scale"},
        Broken{"log2 with score_mod", samples::soft_cap,
               WHEN(attention(g).softmax_input_is_log2 = true), NS,
               "score_mod and softmax_input_is_log2"}}));

INSTANTIATE_TEST_SUITE_P(
    Pages, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"max length, not paged", sdpa, WHEN(SDPA.paged_max_seq_len_kv = 64), NS,
               "When not using paged attention, there is no need to explicitly set max kv sequence "
               "length."},
        Broken{"no lengths", sdpa,
               WHEN(SDPA.page_table_k = g.add(tensor("t", {2, 1, 4, 1}, DataType::i32))), NS,
               "Paged caches can only be used in combination with padding mask"},
        Broken{"block size", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g.tensors[1] = tensor("k", {9, 2, 12, 32});
                    SDPA.page_table_k = g.add(tensor("t", {2, 1, 6, 1}, DataType::i32))),
               IV, "have 12 rows, expected a power of 2"},
        Broken{"table dims", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g.tensors[1] = tensor("k", {9, 2, 16, 32});
                    SDPA.page_table_k = g.add(tensor("t", {2, 1, 3, 1}, DataType::i32))),
               IV, "expected [2, 1, 4, 1]"},
        Broken{"table type", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g.tensors[1] = tensor("k", {9, 2, 16, 32});
                    SDPA.page_table_k = g.add(tensor("t", {2, 1, 4, 1}, DataType::i64))),
               IV, "expected i32"}}));

INSTANTIATE_TEST_SUITE_P(
    Dropout, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"p = 1", sdpa, WHEN(give_dropout(g, 1)), ANS, "Dropout probability cannot be 1"},
        Broken{"p < 0", sdpa, WHEN(give_dropout(g, -0.1)), IV,
               "is -0.1, expected at least 0 and less than 1"},
        Broken{"infinite factor", sdpa,
               WHEN(give_dropout(g, 0.1); attention(g).dropout.factor = INFINITY), IV,
               "The dropout factor is inf, expected a finite number"},
        Broken{"p nan", sdpa, WHEN(give_dropout(g, std::nan(""))), IV, "expected at least 0"},
        Broken{"both", sdpa,
               WHEN(give_dropout(g, 0.1);
                    attention(g).dropout.mask = g.add(tensor("m", {1, 1, 64, 64}))),
               ANS, "Using both, custom dropout mask and"},
        Broken{"no seed", sdpa, WHEN(attention(g).dropout.probability = 0.1), ANS,
               "requires a tensor for the dropout seed"},
        Broken{"no offset", sdpa, WHEN(give_dropout(g, 0.1); attention(g).dropout.offset = kNone),
               ANS, "requires a tensor for the dropout offset"},
        Broken{"no p", sdpa, WHEN(give_dropout(g, 0.1); attention(g).dropout.probability.reset()),
               ANS, "probability is not set"},
        Broken{"seed type", sdpa,
               WHEN(give_dropout(g, 0.1); g[attention(g).dropout.seed].dtype = DataType::f32), IV,
               "expected i32 or i64"},
        Broken{"mask dims", sdpa,
               WHEN(attention(g).dropout.mask = g.add(tensor("m", {1, 1, 64, 63}));
                    attention(g).dropout.scale = scalar(g, "s", DataType::f32)),
               IV, "dropout mask"},
        Broken{"mask without scale", sdpa,
               WHEN(attention(g).dropout.mask = g.add(tensor("m", {1, 1, 64, 64}))), ANS,
               "requires a tensor for the dropout scale"},
        Broken{"dump without dropout", sdpa,
               WHEN(attention(g).dropout.rng_dump = g.add(samples::output("d", DataType::f32))),
               ANS, "rng_dump is set without dropout"},
        Broken{
            "dump type", sdpa,
            WHEN(give_dropout(g, 0.1); attention(g).dropout.rng_dump = g.add(samples::output("d"))),
            IV, "expected f32"},
        Broken{"threefry strides", sdpa,
               WHEN(attention(g).dropout = {0.1, g.add(tensor("key", {2}, DataType::u32))};
                    attention(g).dropout.threefry = true),
               IV, "threefry_strides is []"},
        Broken{"threefry streams", sdpa,
               WHEN(attention(g).dropout = {0.1, g.add(tensor("key", {2}, DataType::u32))};
                    attention(g).dropout.threefry = true;
                    attention(g).dropout.streams = g.add(tensor("n", {1, 1, 1, 1}, DataType::i32))),
               IV, "numbers no streams"},
        Broken{"dropout streams", sdpa,
               WHEN(give_dropout(g, 0.1);
                    attention(g).dropout.streams = g.add(tensor("n", {2, 3, 1, 1}, DataType::i32))),
               IV, "dropout streams"},
        Broken{"type of dropout streams", sdpa,
               WHEN(give_dropout(g, 0.1);
                    attention(g).dropout.streams = g.add(tensor("n", {2, 4, 1, 1}, DataType::i64))),
               IV, "expected i32"},
        Broken{"threefry key", sdpa,
               WHEN(attention(g).dropout = {0.1, g.add(tensor("key", {4}, DataType::u32))};
                    attention(g).dropout.threefry = true),
               IV, "two words of a Threefry key"}}));

INSTANTIATE_TEST_SUITE_P(
    ScoreModifiers, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"arity", samples::soft_cap, WHEN(attention(g).score_mod->ops[0].inputs.pop_back()),
               IV, "div has 1 inputs, expected 2"},
        Broken{"order", samples::soft_cap,
               WHEN(std::swap(attention(g).score_mod->ops[0], attention(g).score_mod->ops[2])), IV,
               "before it is made"},
        Broken{"result", samples::soft_cap, WHEN(attention(g).score_mod->score_out = SDPA.q), IV,
               "is made by none of its ops"},
        Broken{"shape", samples::soft_cap, WHEN(attention(g).score_mod->ops[0].inputs[1] = SDPA.k),
               IV, "expected [2, 8, 64, 64] where dims of 1 broadcast"},
        Broken{"axis", samples::soft_cap,
               WHEN(auto& op = attention(g).score_mod->ops[1]; op.mode = PointwiseMode::gen_index;
                    op.inputs.clear(); op.axis = 4),
               IV, "gen_index has axis 4"},
        Broken{"not virtual", samples::soft_cap,
               WHEN(g[attention(g).score_mod->score_out].is_virtual = false), IV,
               "must be virtual"},
        Broken{"no result", samples::soft_cap, WHEN(attention(g).score_mod->score_out = kNone), ANS,
               "has no result"},
        Broken{"bprop alone", sdpa_backward, WHEN(BACKWARD.score_mod_bprop = ScoreModifier{}), ANS,
               "score_mod_bprop is set without the score_mod"}}));

INSTANTIATE_TEST_SUITE_P(
    Backward, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no statistics", sdpa_backward, WHEN(BACKWARD.stats = kNone), ANS,
               "None of Stats, Max and Sum_exp is set, expected Stats, or Max and Sum_exp"},
        Broken{"max alone", sdpa_backward_of_pair, WHEN(BACKWARD.sum_exp = kNone), ANS,
               "Max is set without Sum_exp, expected both or Stats"},
        Broken{"sum alone", sdpa_backward_of_pair, WHEN(BACKWARD.max = kNone), ANS,
               "Sum_exp is set without Max, expected both or Stats"},
        Broken{"stats and pair", sdpa_backward_of_pair,
               WHEN(BACKWARD.stats = g.add(tensor("stats", {2, 8, 64, 1}, DataType::f32))), IV,
               "Stats is set beside Max and Sum_exp, expected one form"},
        Broken{"sum type", sdpa_backward_of_pair, WHEN(g[BACKWARD.sum_exp].dtype = DataType::f64),
               IV,
               "Sum_exp of sdpa_backward 'attention_backward', tensor 'sum_exp' (uid 10), has data "
               "type f64, expected f32"},
        Broken{"dStats dims", sdpa_backward_of_stats,
               WHEN(g[BACKWARD.d_stats] = tensor("d_stats", {2, 8, 32, 1}, DataType::f32)), IV,
               "dStats of sdpa_backward 'attention_backward', tensor 'd_stats' (uid 10), has dims "
               "[2, 8, 32, 1], expected [2, 8, 64, 1]"},
        Broken{"dStats type", sdpa_backward_of_stats,
               WHEN(g[BACKWARD.d_stats].dtype = DataType::bf16), IV,
               "has data type bf16, expected f32"},
        Broken{"no dO", sdpa_backward, WHEN(BACKWARD.d_o = kNone), ANS, "requires a tensor for dO"},
        Broken{"nothing wanted", sdpa_backward,
               WHEN(BACKWARD.d_q = BACKWARD.d_k = BACKWARD.d_v = kNone), ANS,
               "expected at least one"},
        Broken{"dQ dims", sdpa_backward, WHEN(g[BACKWARD.d_q].dims = {2, 2, 64, 32}), IV,
               "dQ of sdpa_backward 'attention_backward', tensor 'd_q' (uid 7), has dims [2, 2, "
               "64, 32], expected [2, 8, 64, 32]"},
        Broken{"dK dims", sdpa_backward, WHEN(g[BACKWARD.d_k].dims = {2, 8, 64, 32}), IV,
               "expected [2, 2, 64, 32]"},
        Broken{"dV type", sdpa_backward, WHEN(g[BACKWARD.d_v].dtype = DataType::f16), IV,
               "expected bf16 or f32"},
        Broken{"dBias without bias", sdpa_backward,
               WHEN(BACKWARD.d_bias = g.add(samples::output("db"))), ANS,
               "dBias is set without a bias"},
        Broken{"dBias dims", sdpa_backward,
               WHEN(attention(g).bias = g.add(tensor("b", {1, 8, 64, 64}));
                    BACKWARD.d_bias = g.add(tensor("db", {2, 4, 64, 64}))),
               IV, "expected [2, 8, 64, 64] where dims of 1 broadcast"},
        Broken{"dSink without sink", sdpa_backward,
               WHEN(BACKWARD.d_sink = g.add(samples::output("ds", DataType::f32))), ANS,
               "If dsink is set, sink also needs to be set."},
        Broken{"stats dims", sdpa_backward,
               WHEN(g[BACKWARD.stats] = tensor("stats", {2, 8, 64, 32}, DataType::f32)), IV,
               "expected [2, 8, 64, 1]"}}));

}  // namespace
}  // namespace heddle::graph
