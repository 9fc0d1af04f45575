#include "graph/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "graph/samples.h"
#include "graph/uids.h"
#include "graph/validate.h"

namespace heddle::graph {
namespace {

std::vector<Graph> all_samples() {
  return {samples::sdpa(),
          samples::sdpa_backward(),
          samples::sdpa_backward_of_pair(),
          samples::sdpa_backward_of_stats(),
          samples::rope(),
          samples::rope_sdpa(),
          samples::soft_cap(),
          samples::swish_scores(),
          samples::rms_norm(),
          samples::rms_norm_backward(),
          samples::layer_norm(),
          samples::layer_norm_backward(),
          samples::instance_norm(),
          samples::batch_norm(),
          samples::batch_norm_backward(),
          samples::pointwise(),
          samples::relu(),
          samples::cache_append(),
          samples::cache_append_of_codes()};
}

TEST(Text, RoundTripsEveryOpInBothLayouts) {
  for (Graph graph : all_samples()) {
    for (bool validated : {false, true}) {
      if (validated) {
        ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
      }
      Graph expected = graph;
      assign_uids(expected);
      for (TextLayout layout : {TextLayout::line, TextLayout::indented}) {
        const std::string text = write_text(graph, layout);
        const Result<Graph> read = read_text(text);
        ASSERT_TRUE(read.is_ok()) << read.status().message() << "\n" << text;
        EXPECT_EQ(*read, expected) << text;
        EXPECT_EQ(write_text(*read, layout), text);
      }
    }
  }
}

// Characters in place of bytes that are none would make one name of two.
TEST(Text, NamesOfOtherBytesAreLeftOut) {
  Graph graph = samples::sdpa();
  graph.tensors[0].name = "\xFF";
  graph.tensors[1].name = "\xC3";
  graph.tensors[2].name = "\xEF\xBF\xBD";  // the character itself
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  Result<Graph> read = read_text(write_text(graph));
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_TRUE(validate(*read).is_ok()) << validate(*read).message();
  EXPECT_EQ(read->tensors[0].name, "");
  EXPECT_EQ(read->tensors[1].name, "");
  EXPECT_EQ(read->tensors[2].name, graph.tensors[2].name);
}

// Every field set to something that is not its default, so that a forgotten one is missed.
TEST(Text, RoundTripsEveryField) {
  Graph graph = samples::sdpa();
  graph.nodes.reserve(5);  // `op` stays where it is
  Sdpa& op = samples::sdpa_of(graph);
  const auto any = [&](const char* name) {
    return graph.add(samples::tensor(name, {1, 1, 1, 1}, DataType::i32));
  };
  op.max = any("max"), op.sum_exp = any("sum_exp");
  op.stats_use_log2 = op.attn_scale_prefolded = op.scores_after_softmax = true;
  op.scores = any("scores");
  op.page_table_k = any("table_k"), op.page_table_v = any("table_v");
  op.paged_max_seq_len_kv = 77;
  op.k_scale = any("k_scale"), op.v_scale = any("v_scale");
  op.max_seq_len_kv = 78, op.ring_kv = true;
  AttentionAttributes& a = op.attention;
  a.attn_scale = 0.1;  // not a short binary fraction
  a.attn_scale_tensor = any("scale");
  a.bias = any("bias");
  a.alibi_mask = a.padding_mask = a.softmax_input_is_log2 = true;
  a.seq_len_q = any("lq"), a.seq_len_kv = any("lkv"), a.cu_seq_len_q = any("clq"),
  a.cu_seq_len_kv = any("clkv");
  a.max_total_seq_len_q = 1, a.max_total_seq_len_kv = 2;
  a.diagonal_alignment = DiagonalAlignment::bottom_right;
  a.left_bound = -3, a.right_bound = 4;
  a.block_mask = any("block_mask"), a.sink = any("sink");
  a.dropout = {0.3,        any("seed"), any("offset"), any("mask"),  any("ds"),
               any("dsi"), any("dump"), true,          {4, 3, 2, 1}, any("streams")};
  a.score_mod = ScoreModifier{
      any("si"), any("so"), {{PointwiseMode::gen_index, {}, any("index"), 3, "index"}}};
  graph[op.q].ragged_offset = a.seq_len_q;
  graph[op.q].ragged_offset_multiplier = 64;
  graph[op.k].pass_by_value = true;
  graph[op.v].constant = -std::numeric_limits<double>::infinity();
  graph.nodes.push_back(
      {"b", SdpaBackward{op.q, op.k, op.v, op.o, op.max, op.stats, any("bmax"), any("bsum"),
                         any("dstats"), any("dq"), any("dk"), any("dv"), any("db"), any("dsink"),
                         true, true, a, a.score_mod}});
  AttentionAttributes banded;
  banded.left_bound = 5;
  graph.nodes.push_back(
      {"f8",
       SdpaFp8{op.q, op.k, op.v, any("8q"), any("8k"), any("8v"), any("8ds"), any("8s"), any("8o"),
               any("8y"), any("8st"), any("8as"), any("8ao"), any("8pk"), any("8pv"), 70, banded}});
  graph.nodes.push_back(
      {"f8b",
       SdpaFp8Backward{op.q,        op.k,       op.v,        any("fo"),   any("fdo"),  any("fst"),
                       any("fdq"),  any("fdk"), any("fdv"),  any("fdeo"), any("fddo"), any("fds"),
                       any("fddp"), any("fss"), any("fsdp"), any("fsdq"), any("fsdk"), any("fsdv"),
                       any("frq"),  any("frk"), any("frv"),  any("faq"),  any("fak"),  any("fav"),
                       any("fap"),  true,       banded}});
  graph.nodes.push_back({"r", Rope{op.q, op.k, op.v, true, -0.5, 6, true, RopePairing::interleaved,
                                   any("p"), any("c"), any("s")}});
  graph.nodes.push_back(
      {"a",
       CacheAppend{
           any("aq"),   any("ak"),   any("av"),   any("apk"), any("apv"), any("atk"),
           any("atv"),  any("alq"),  any("alkv"), -3,         any("aqn"), any("akn"),
           0.5,         0.25,        any("ac"),   any("as"),  any("ap"),  RopePairing::interleaved,
           any("aks"),  any("avs"),  true,        any("aqo"), any("ank"), any("anv"),
           any("aloq"), any("alokv")}});
  graph.nodes.push_back({"p", PointwiseNode{PointwiseMode::binary_select, any("pa"), any("pb"),
                                            any("pc"), any("py"), -3}});
  assign_uids(graph);
  const Result<Graph> read = read_text(write_text(graph));
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_EQ(*read, graph);
}

struct Malformed {
  const char* text;
  const char* message;
};

class TextErrors : public testing::TestWithParam<Malformed> {};

TEST_P(TextErrors, NamePlaceFoundAndExpected) {
  const Result<Graph> read = read_text(GetParam().text);
  ASSERT_FALSE(read.is_ok());
  EXPECT_EQ(read.status().code(), Code::malformed_input);
  EXPECT_NE(read.status().message().find(GetParam().message), std::string::npos)
      << read.status().message();
}

INSTANTIATE_TEST_SUITE_P(
    Text, TextErrors,
    testing::ValuesIn(std::vector<Malformed>{
        Malformed{"", "line 1, column 1: syntax error"},
        Malformed{"[]", "line 1, column 1: \"graph\" is an array, expected an object"},
        Malformed{R"({"heddle_graph": 1e999})",
                  "line 1, column 22: number overflow parsing '1e999'"},
        Malformed{"{\"heddle_graph\": 1,\n \"tensors\": [", "line 2, column 14: syntax error"},
        Malformed{"{\"tensors\": [], \"nodes\": []}", "lacks the key \"heddle_graph\""},
        Malformed{"{\"heddle_graph\": 2, \"tensors\": [], \"nodes\": []}",
                  "\"heddle_graph\" is 2, expected 1"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [], \"nodes\": [], \"extra\": 1}",
                  "line 1, column 49: graph has no key \"extra\""},
        Malformed{"{\"heddle_graph\": 1, \"heddle_graph\": 1}",
                  "line 1, column 21: the key \"heddle_graph\" is given twice"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [{\"dims\": [1]}], \"nodes\": []}",
                  "line 1, column 33: tensor lacks the key \"uid\""},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 1}, {\"uid\": 1}], \"nodes\": []}",
                  "the uid 1 is given to two tensors"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 0}], \"nodes\": []}",
                  "the uid 0 means no uid"},
        Malformed{
            "{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 18446744073709551615}], \"nodes\": []}",
            "does not fit in 64 bits"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 1,\n  \"dtype\": \"f31\"}], "
                  "\"nodes\": []}",
                  "line 2, column 12: \"dtype\" is \"f31\", expected a data type: f64"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 1, \"dims\": "
                  "[1,2,3,4,5,6,7,8,9]}], \"nodes\": []}",
                  "\"dims\" has 9 entries, expected at most 8"},
        Malformed{
            "{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 1, \"dims\": [1.5]}], \"nodes\": []}",
            "\"dims\" is a number, expected integers"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [{\"uid\": 1, \"ragged_offset\": 9}], "
                  "\"nodes\": []}",
                  "\"ragged_offset\" is 9, which is the uid of no tensor"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [], \"nodes\": [{\"op\": \"conv\"}]}",
                  "line 1, column 53: there is no op \"conv\""},
        Malformed{
            "{\"heddle_graph\": 1, \"tensors\": [], \"nodes\": [{\"op\": \"sdpa\", \"q\": 1}]}",
            "\"q\" is 1, which is the uid of no tensor"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [], \"nodes\": [{\"op\": \"sdpa\", "
                  "\"alibi_mask\": 1}]}",
                  "\"alibi_mask\" is an integer, expected true or false"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [], \"nodes\": [{\"op\": \"rope\", "
                  "\"pairing\": \"x\"}]}",
                  "\"pairing\" is \"x\", expected one of halves, interleaved"},
        Malformed{"{\"heddle_graph\": 1, \"tensors\": [], \"nodes\": [{\"op\": \"sdpa\", "
                  "\"dropout\": {\"p\": 1}}]}",
                  "dropout has no key \"p\", its keys are probability, seed, offset, mask, scale, "
                  "scale_inv, rng_dump, threefry, threefry_strides, streams, factor."}}));

TEST(Text, RefusesHostileNestingAndSizes) {
  const Result<Graph> deep = read_text(std::string(1 << 20, '['));
  ASSERT_FALSE(deep.is_ok());
  EXPECT_NE(deep.status().message().find("nested deeper than the 16 levels"), std::string::npos);
  const Result<Graph> large = read_text(std::string((16 << 20) + 1, ' '));
  ASSERT_FALSE(large.is_ok());
  EXPECT_NE(large.status().message().find("longer than the 16777216 bytes"), std::string::npos);
  std::string wide = "{";
  for (int i = 0; i < 65; ++i) wide += fmt::format("\"k{}\": 0,", i);
  EXPECT_NE(read_text(wide).status().message().find("more than the 64 keys"), std::string::npos);
}

TEST(Text, EveryTruncationIsRefusedInWords) {
  const std::string text = write_text(samples::soft_cap());
  for (size_t length = 0; length < text.size(); ++length) {
    const Result<Graph> read = read_text(std::string_view(text).substr(0, length));
    ASSERT_FALSE(read.is_ok()) << length;
    EXPECT_EQ(read.status().message().rfind("line 1, column ", 0), 0u) << read.status().message();
  }
}

}  // namespace
}  // namespace heddle::graph
