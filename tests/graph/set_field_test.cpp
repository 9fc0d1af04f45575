#include "graph/set_field.h"

#include <gtest/gtest.h>

#include "graph/samples.h"

namespace heddle::graph {
namespace {

TEST(SetField, SetsPortsAttributesAndGroups) {
  Result<Node> node = make_node("sdpa", "attention");
  ASSERT_TRUE(node.is_ok());
  EXPECT_TRUE(set_field(*node, "q", TensorValue{3}).is_ok());
  EXPECT_TRUE(set_field(*node, "attn_scale", 0.5).is_ok());
  EXPECT_TRUE(set_field(*node, "right_bound", int64_t{0}).is_ok());
  EXPECT_TRUE(set_field(*node, "alibi_mask", true).is_ok());
  EXPECT_TRUE(set_field(*node, "diagonal_alignment", std::string_view("bottom_right")).is_ok());
  EXPECT_TRUE(set_field(*node, "dropout.probability", int64_t{0}).is_ok())
      << "integers are numbers";
  EXPECT_TRUE(set_field(*node, "dropout.seed", TensorValue{7}).is_ok());
  EXPECT_TRUE(set_field(*node, "dropout.threefry_strides", Dims{4, 3, 2, 1}).is_ok());
  EXPECT_TRUE(set_field(*node, "score_mod.score_in", TensorValue{8}).is_ok());
  EXPECT_TRUE(add_pointwise(*node, "score_mod", {PointwiseMode::neg, {8}, 9}).is_ok());
  EXPECT_TRUE(add_pointwise(*node, "score_mod", {PointwiseMode::swish_fwd, {9}, 10}).is_ok());
  EXPECT_TRUE(set_field(*node, "score_mod.ops.swish_beta", 1.5).is_ok());
  const Sdpa& op = std::get<Sdpa>(node->op);
  EXPECT_EQ(op.q, 3);
  EXPECT_EQ(op.attention.attn_scale, 0.5);
  EXPECT_EQ(op.attention.right_bound, 0);
  EXPECT_TRUE(op.attention.alibi_mask);
  EXPECT_EQ(op.attention.diagonal_alignment, DiagonalAlignment::bottom_right);
  EXPECT_EQ(op.attention.dropout.probability, 0.0);
  EXPECT_EQ(op.attention.dropout.seed, 7);
  EXPECT_EQ(op.attention.dropout.threefry_strides, (Dims{4, 3, 2, 1}));
  EXPECT_EQ(op.attention.score_mod->score_in, 8);
  ASSERT_EQ(op.attention.score_mod->ops.size(), 2u);
  EXPECT_FALSE(op.attention.score_mod->ops[0].numbers.swish_beta);
  EXPECT_EQ(op.attention.score_mod->ops[1].numbers.swish_beta, 1.5) << "of the op appended last";
}

TEST(SetField, RefusesInWords) {
  Node node = samples::sdpa().nodes[0];
  const Node before = node;
  for (const char* path :
       {"spam", "causal", "dropout", "score_mod.spam", "score_mod.ops.swish_beta"}) {
    const std::string message = set_field(node, path, 1.0).message();
    EXPECT_TRUE(message.starts_with(
        fmt::format("sdpa has no field '{}' to set; it has q, k, v, o, stats, ", path)))
        << message;
    // Those of groups too, and the last.
    for (const char* has : {", right_bound, ", ", dropout.probability, ", ", score_mod.score_in, ",
                            ", score_mod.ops.swish_beta, ", ", softmax_input_is_log2."})
      EXPECT_NE(message.find(has), std::string::npos) << message;
  }
  Node rope = *make_node("rope", "");
  EXPECT_EQ(set_field(rope, "angles", TensorValue{1}).message(),
            "rope has no field 'angles' to set; it has x, freqs, cosines, sines, positions, y, "
            "output_scale, rope_dim, leading, pairing.");
  EXPECT_EQ(set_field(node, "q", 1.0).message(),
            "The field 'q' is given a number, expected a tensor.");
  EXPECT_EQ(set_field(node, "diagonal_alignment", std::string_view("up")).message(),
            "The field 'diagonal_alignment' is 'up', expected one of top_left, bottom_right.");
  EXPECT_EQ(add_pointwise(node, "score_mod_bprop", {}).message(),
            "sdpa has no score expression 'score_mod_bprop'.");
  EXPECT_FALSE(make_node("conv", "").is_ok());
  EXPECT_EQ(node, before);
}

}  // namespace
}  // namespace heddle::graph
