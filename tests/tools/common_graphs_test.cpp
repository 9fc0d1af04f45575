// The graphs whose kernels packages carry serve what programs ask for, at other sizes than theirs.
#include "tools/common_graphs.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/cuda/lowering.h"
#include "fusion/schedule.h"
#include "gqa/operator.h"
#include "graph/validate.h"
#include "tools/graph_file.h"

namespace heddle::tools {
namespace {

std::set<std::string> sources_of(const graph::Graph& graph, const char* architecture) {
  std::set<std::string> sources;
  const auto target = engine::cuda::target_named(architecture);
  const auto schedule = fusion::fuse(graph);
  EXPECT_TRUE(schedule.is_ok()) << schedule.status().message();
  if (!schedule) return sources;
  for (const fusion::Step& step : schedule->steps) {
    const auto lowering = engine::cuda::lower(step.problem, *target);
    EXPECT_TRUE(lowering.is_ok()) << lowering.status().message();
    if (!lowering) continue;
    for (const engine::cuda::KernelUnit& unit : lowering->units) sources.insert(unit.source);
  }
  return sources;
}

/// Heads beside tokens, as JAX and torch lay them out.
std::string tensor(int uid, const char* dtype, int64_t batch, int64_t heads, int64_t rows,
                   int64_t columns) {
  return fmt::format(
      R"({{"uid":{},"name":"t{}","dtype":"{}","dims":[{},{},{},{}],"strides":[{},{},{},1]}})", uid,
      uid, dtype, batch, heads, rows, columns, rows * heads * columns, columns, heads * columns);
}

struct Asked {
  const char* dtype;
  int64_t batch, heads, kv_heads, queries, keys, dim;
  const char* causal;  ///< as an attribute
  bool lengths = false;
  int64_t value_dim = 0;  ///< 0: as dim
  bool drops = false;
  int64_t columns_of_values() const { return value_dim != 0 ? value_dim : dim; }
};

std::string attributes(const Asked& a, int uid) {
  return fmt::format(
      R"("attn_scale":0.3,"diagonal_alignment":"top_left"{}{}{}}}]}})", a.causal,
      a.drops ? R"(,"dropout":{"probability":0.25,"seed":8,"offset":9})" : "",
      a.lengths
          ? fmt::format(R"(,"padding_mask":true,"seq_len_q":{},"seq_len_kv":{})", uid, uid + 1)
          : "");
}

std::string beginning(const Asked& a, const char* statistics_dtype = "f32") {
  const auto q = [&](int uid) { return tensor(uid, a.dtype, a.batch, a.heads, a.queries, a.dim); };
  const auto k = [&](int uid) { return tensor(uid, a.dtype, a.batch, a.kv_heads, a.keys, a.dim); };
  std::string text =
      R"({"heddle_graph":1,"intermediate_dtype":"f32","compute_dtype":"f32","tensors":[)";
  const int64_t values = a.columns_of_values();
  text += q(1) + "," + k(2) + "," + tensor(3, a.dtype, a.batch, a.kv_heads, a.keys, values) + "," +
          tensor(4, a.dtype, a.batch, a.heads, a.queries, values) + ",";
  text += fmt::format(R"({{"uid":5,"name":"s","dtype":"{}","dims":[{},{},{},1]}})",
                      statistics_dtype, a.batch, a.heads, a.queries);
  if (a.lengths) {
    for (int uid : {6, 7})
      text += fmt::format(R"(,{{"uid":{},"name":"l{}","dtype":"i32","dims":[{},1,1,1]}})", uid, uid,
                          a.batch);
  }
  for (const int uid : {8, 9})
    if (a.drops)
      text += fmt::format(R"(,{{"uid":{},"name":"w{}","dtype":"i64","dims":[1,1,1,1]}})", uid, uid);
  return text;
}

std::string forward(const Asked& a, bool trains = true) {
  return fmt::format(R"({}],"nodes":[{{"op":"sdpa","q":1,"k":2,"v":3,"o":4,{}{})", beginning(a),
                     trains ? R"("stats":5,)" : "", attributes(a, 6));
}

std::string backward(const Asked& a) {
  std::string text = beginning(a);
  const int64_t values = a.columns_of_values();
  text += "," + tensor(11, a.dtype, a.batch, a.heads, a.queries, values);
  text += "," + tensor(12, a.dtype, a.batch, a.heads, a.queries, a.dim);
  text += "," + tensor(13, a.dtype, a.batch, a.kv_heads, a.keys, a.dim);
  text += "," + tensor(14, a.dtype, a.batch, a.kv_heads, a.keys, values);
  return text +
         R"(],"nodes":[{"op":"sdpa_backward","q":1,"k":2,"v":3,"o":4,"stats":5,"d_o":11,)"
         R"("d_q":12,"d_k":13,"d_v":14,)" +
         attributes(a, 6);
}

class CommonGraphs : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const Result<std::vector<CommonGraph>> graphs = common_graphs();
    ASSERT_TRUE(graphs.is_ok()) << graphs.status().message();
    for (const CommonGraph& one : *graphs) {
      EXPECT_TRUE(names_.insert(one.name).second) << one.name << " is there twice";
      carried_.merge(sources_of(one.graph, GetParam()));
    }
  }
  /// Whether a program that asks for it compiles nothing.
  bool carry(const std::string& text) const { return carry(graph_of(text, "asked")); }
  bool carry(const Result<graph::Graph>& graph) const {
    EXPECT_TRUE(graph.is_ok()) << graph.status().message();
    const std::set<std::string> asked = sources_of(*graph, GetParam());
    EXPECT_FALSE(asked.empty());
    return std::includes(carried_.begin(), carried_.end(), asked.begin(), asked.end());
  }

  std::set<std::string> names_, carried_;
};

constexpr const char* kCausal = R"(,"right_bound":0)";

TEST_P(CommonGraphs, ServeAttentionOfAnySize) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const int64_t dim : {64, 128}) {
      for (const char* causal : {"", kCausal}) {
        for (const int64_t length : {333, 512, 1000, 2049, 4096, 8200, 40000}) {
          for (const int64_t kv_heads : {24, 3, 1}) {
            const Asked asked{dtype, 5, 24, kv_heads, length, length, dim, causal};
            const std::string words = fmt::format("{} {} {} {}", dtype, dim, causal, length);
            EXPECT_TRUE(carry(forward(asked))) << words;
            EXPECT_TRUE(carry(forward(asked, false))) << words;
            EXPECT_TRUE(carry(backward(asked))) << words;
          }
        }
      }
    }
  }
}

TEST_P(CommonGraphs, ServeWideHeadsAndLengths) {
  for (const char* causal : {"", kCausal}) {
    for (const int64_t length : {600, 3000, 30000}) {
      for (const int64_t kv_heads : {6, 2}) {
        const Asked wide{"bf16", 3, 6, kv_heads, length, length, 256, causal};
        EXPECT_TRUE(carry(forward(wide))) << length;
        EXPECT_TRUE(carry(backward(wide))) << length;
      }
    }
    for (const int64_t dim : {64, 128}) {
      const Asked lengths{"bf16", 7, 12, 12, 3000, 3000, dim, causal, true};
      EXPECT_TRUE(carry(forward(lengths))) << dim;
      EXPECT_TRUE(carry(backward(lengths))) << dim;
    }
  }
}

TEST_P(CommonGraphs, ServeLatentAttention) {
  for (const int64_t length : {500, 1000, 2000, 4096, 8000, 50000}) {
    const Asked latent{"bf16", 3, 16, 16, length, length, 192, kCausal, false, 128};
    EXPECT_TRUE(carry(forward(latent))) << length;
    EXPECT_TRUE(carry(backward(latent))) << length;
  }
}

TEST_P(CommonGraphs, ServeATokenBehindACache) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const int64_t dim : {64, 128}) {
      for (const int64_t keys : {300, 5000, 131072}) {
        for (const int64_t kv_heads : {32, 8, 4}) {
          for (const bool lengths : {false, true}) {
            const Asked step{dtype, 4, 32, kv_heads, 1, keys, dim, "", lengths};
            EXPECT_TRUE(carry(forward(step))) << dtype << dim << " " << keys << " " << kv_heads;
          }
        }
      }
    }
  }
}

TEST_P(CommonGraphs, ServeDropout) {
  for (const char* causal : {"", kCausal}) {
    for (const int64_t length : {333, 1000, 2049, 40000}) {
      for (const int64_t kv_heads : {24, 3}) {
        for (const int64_t dim : {64, 128}) {
          const Asked asked{"bf16", 5, 24, kv_heads, length, length, dim, causal, false, 0, true};
          EXPECT_TRUE(carry(forward(asked))) << dim << causal << " " << length;
          EXPECT_TRUE(carry(backward(asked))) << dim << causal << " " << length;
        }
      }
    }
  }
}

TEST_P(CommonGraphs, ServeF32) {
  for (const char* causal : {"", kCausal}) {
    for (const int64_t dim : {64, 128, 256}) {
      const Asked asked{"f32", 3, 6, 6, 3000, 3000, dim, causal};
      EXPECT_TRUE(carry(forward(asked))) << dim;
      EXPECT_TRUE(carry(backward(asked))) << dim;
    }
  }
}

TEST_P(CommonGraphs, ServeAStepOfGroupQueryAttention) {
  for (const DataType dtype : {DataType::bf16, DataType::f16}) {
    for (const int64_t dim : {64, 128}) {
      for (const int64_t keys : {300, 5000, 131072}) {
        for (const int64_t kv_heads : {32, 8, 4}) {
          for (const bool packed : {true, false}) {
            gqa::Operator step;
            step.num_heads = 32, step.kv_num_heads = kv_heads, step.do_rotary = 1;
            step.total_length = keys;
            const int64_t heads = packed ? 32 + 2 * kv_heads : 32;
            step.inputs[gqa::query] = {dtype, {4, 1, heads * dim}};
            if (!packed)
              step.inputs[gqa::key] = step.inputs[gqa::value] = {dtype, {4, 1, kv_heads * dim}};
            step.inputs[gqa::past_key] =
                step.inputs[gqa::past_value] = {dtype, {4, kv_heads, keys, dim}};
            step.inputs[gqa::seqlens_k] = {DataType::i32, {4}};
            step.inputs[gqa::total_sequence_length] = {DataType::i32, {1}};
            step.inputs[gqa::cos_cache] = step.inputs[gqa::sin_cache] = {dtype, {keys, dim / 2}};
            Result<graph::Graph> graph = gqa::graph_of(step);
            ASSERT_TRUE(graph.is_ok()) << graph.status().message();
            ASSERT_TRUE(graph::validate(*graph).is_ok());
            EXPECT_TRUE(carry(graph))
                << name(dtype) << " " << dim << " " << keys << " " << kv_heads << packed;
          }
        }
      }
    }
  }
}

TEST_P(CommonGraphs, ServeNoWidthThatTheyDoNotClaim) {
  EXPECT_FALSE(carry(forward({"bf16", 2, 4, 4, 1024, 1024, 72, ""})));
}

INSTANTIATE_TEST_SUITE_P(OfArchitectures, CommonGraphs, ::testing::Values("sm_80", "sm_90a"));

}  // namespace
}  // namespace heddle::tools
