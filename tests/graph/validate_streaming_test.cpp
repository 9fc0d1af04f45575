// The rules of RoPE and RMSNorm.
#include "graph/broken_graphs.h"

namespace heddle::graph {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Ropes, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no input", samples::rope, WHEN(ROPE.x = kNone), ANS,
               "RoPE node requires INPUT tensor."},
        Broken{"no freqs", samples::rope, WHEN(ROPE.freqs = kNone), ANS,
               "RoPE node requires FREQS tensor."},
        Broken{"no dY", samples::rope, WHEN(ROPE.backward = true; ROPE.x = kNone), ANS,
               "RoPE backward node requires DY (input gradient) tensor."},
        Broken{"backward, no freqs", samples::rope, WHEN(ROPE.backward = true; ROPE.freqs = kNone),
               ANS, "RoPE backward node requires FREQS tensor."},
        Broken{"rank", samples::rope, WHEN(g.tensors[0] = tensor("x", {8, 64, 32})), ANS,
               "The dim for INPUT is invalid"},
        Broken{"x type", samples::rope, WHEN(g.tensors[0].dtype = DataType::i32), IV,
               "has data type i32"},
        Broken{"freqs type", samples::rope, WHEN(g.tensors[1].dtype = DataType::bf16), IV,
               "has data type bf16, expected f32"},
        Broken{"last stride", samples::rope,
               WHEN(g.tensors[0].strides = {8 * 64 * 32, 64 * 32, 1, 64}), NS,
               "should be 1 for INPUT"},
        Broken{"odd D", samples::rope, WHEN(g.tensors[0] = tensor("x", {2, 8, 64, 33})), IV,
               "has head dim 33, expected an even one"},
        Broken{"odd rope_dim", samples::rope, WHEN(ROPE.rope_dim = 3), IV,
               "rope_dim is 3, expected an even number"},
        Broken{"negative rope_dim", samples::rope, WHEN(ROPE.rope_dim = -2), IV, "rope_dim is -2"},
        Broken{"large rope_dim", samples::rope, WHEN(ROPE.rope_dim = 34), IV, "rope_dim is 34"},
        Broken{"freqs of D columns", samples::rope,
               WHEN(g.tensors[1] = tensor("freqs", {64, 1, 1, 32}, DataType::f32)), IV,
               "expected [Sf, 1, 1, 16]: its last dim is D = 32, where rope_dim = 16 calls for 16"},
        Broken{"short freqs", samples::rope,
               WHEN(g.tensors[1] = tensor("freqs", {63, 1, 1, 16}, DataType::f32)), IV,
               "has 63 rows, expected at least 64"},
        Broken{"scale", samples::rope, WHEN(ROPE.output_scale = std::nan("")), IV,
               "output_scale is nan"},
        Broken{"y dims", samples::rope, WHEN(g[ROPE.y].dims = {2, 8, 64, 16}), IV,
               "expected [2, 8, 64, 32]"},
        Broken{"angles and tables", samples::rope,
               WHEN(ROPE.cosines = g.add(tensor("c", {64, 1, 1, 8}, DataType::f32))), IV,
               "both set"},
        Broken{"cosines alone", samples::rope,
               WHEN(ROPE.freqs = kNone;
                    ROPE.cosines = g.add(tensor("c", {64, 1, 1, 8}, DataType::f32))),
               ANS, "cosines are set without sines"},
        Broken{"positions", samples::rope,
               WHEN(ROPE.positions = g.add(tensor("p", {2, 8, 64, 1}, DataType::i32))), IV,
               "positions"}}));

INSTANTIATE_TEST_SUITE_P(
    Norms, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no epsilon", samples::rms_norm, WHEN(NORM.epsilon = kNone), ANS,
               "requires a tensor for epsilon"},
        Broken{"negative epsilon", samples::rms_norm, WHEN(g[NORM.epsilon].constant = -1), IV,
               "epsilon is -1"},
        Broken{"scale dims", samples::rms_norm,
               WHEN(g.tensors[1] = tensor("w", {1, 511, 1, 1}, DataType::f32)), IV,
               "expected each to be 1 or that of X"},
        Broken{"scale rank", samples::rms_norm,
               WHEN(g.tensors[1] = tensor("w", {512}, DataType::f32)), IV,
               "expected each to be 1 or that of X"},
        Broken{"nothing normalised", samples::rms_norm,
               WHEN(g.tensors[1] = tensor("w", {1, 1, 1, 1}, DataType::f32)), IV,
               "normalise none of X"},
        Broken{"statistic type", samples::rms_norm,
               WHEN(g[NORM.inv_variance].dtype = DataType::bf16), IV, "expected f32"},
        Broken{"statistic dims", samples::rms_norm,
               WHEN(g[NORM.inv_variance].dims = {128, 512, 1, 1}), IV, "expected [128, 1, 1, 1]"},
        Broken{"backward, no statistic", samples::rms_norm_backward,
               WHEN(std::get<RmsNormBackward>(g.nodes[0].op).inv_variance = kNone), ANS,
               "requires a tensor for inv_variance"}}));

}  // namespace
}  // namespace heddle::graph
