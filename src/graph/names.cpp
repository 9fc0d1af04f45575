#include "graph/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace heddle::graph {
namespace {

struct Spelling {
  std::string_view name;
  int arity;
};

// In the order of PointwiseMode.
constexpr std::array<Spelling, 49> kPointwise{{
    {"identity", 1},
    {"add", 2},
    {"sub", 2},
    {"mul", 2},
    {"div", 2},
    {"min", 2},
    {"max", 2},
    {"pow", 2},
    {"mod", 2},
    {"neg", 1},
    {"abs", 1},
    {"exp", 1},
    {"log", 1},
    {"sqrt", 1},
    {"rsqrt", 1},
    {"reciprocal", 1},
    {"tanh_fwd", 1},
    {"sigmoid_fwd", 1},
    {"erf", 1},
    {"sin", 1},
    {"cos", 1},
    {"tan", 1},
    {"floor", 1},
    {"ceil", 1},
    {"relu_fwd", 1},
    {"relu_bwd", 2},
    {"tanh_bwd", 2},
    {"sigmoid_bwd", 2},
    {"elu_fwd", 1},
    {"elu_bwd", 2},
    {"gelu_fwd", 1},
    {"gelu_bwd", 2},
    {"gelu_approx_tanh_fwd", 1},
    {"gelu_approx_tanh_bwd", 2},
    {"softplus_fwd", 1},
    {"softplus_bwd", 2},
    {"swish_fwd", 1},
    {"swish_bwd", 2},
    {"cmp_eq", 2},
    {"cmp_neq", 2},
    {"cmp_lt", 2},
    {"cmp_le", 2},
    {"cmp_gt", 2},
    {"cmp_ge", 2},
    {"logical_and", 2},
    {"logical_or", 2},
    {"logical_not", 1},
    {"binary_select", 3},
    {"gen_index", 0},
}};
static_assert(static_cast<size_t>(PointwiseMode::gen_index) == 48);

constexpr std::array<std::string_view, 2> kAlignments{"top_left", "bottom_right"};
constexpr std::array<std::string_view, 2> kPairings{"halves", "interleaved"};

template <class Enum, size_t N>
bool find(const std::array<std::string_view, N>& names, std::string_view text, Enum& value) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == text) {
      value = static_cast<Enum>(i);
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view name(PointwiseMode mode) { return kPointwise[static_cast<size_t>(mode)].name; }
std::string_view name(DiagonalAlignment a) { return kAlignments[static_cast<size_t>(a)]; }
std::string_view name(RopePairing p) { return kPairings[static_cast<size_t>(p)]; }

std::string_view op_name(const Node& node) {
  struct Names {
    std::string_view operator()(const Sdpa&) const { return "sdpa"; }
    std::string_view operator()(const SdpaBackward&) const { return "sdpa_backward"; }
    std::string_view operator()(const SdpaFp8&) const { return "sdpa_fp8"; }
    std::string_view operator()(const SdpaFp8Backward&) const { return "sdpa_fp8_backward"; }
    std::string_view operator()(const Rope& op) const {
      return op.backward ? "rope_backward" : "rope";
    }
    std::string_view operator()(const RmsNorm&) const { return "rms_norm"; }
    std::string_view operator()(const RmsNormBackward&) const { return "rms_norm_backward"; }
    std::string_view operator()(const LayerNorm&) const { return "layer_norm"; }
    std::string_view operator()(const LayerNormBackward&) const { return "layer_norm_backward"; }
    std::string_view operator()(const InstanceNorm&) const { return "instance_norm"; }
    std::string_view operator()(const InstanceNormBackward&) const {
      return "instance_norm_backward";
    }
    std::string_view operator()(const BatchNorm&) const { return "batch_norm"; }
    std::string_view operator()(const BatchNormBackward&) const { return "batch_norm_backward"; }
    std::string_view operator()(const CacheAppend&) const { return "cache_append"; }
    std::string_view operator()(const PointwiseNode&) const { return "pointwise"; }
  };
  return std::visit(Names{}, node.op);
}

std::string_view name(const Node& node) { return node.name.empty() ? op_name(node) : node.name; }

std::string describe(const Tensor& tensor) {
  if (tensor.name.empty()) return fmt::format("tensor with uid {}", tensor.uid);
  return fmt::format("tensor '{}' (uid {})", tensor.name, tensor.uid);
}

bool from_name(std::string_view text, PointwiseMode& value) {
  for (size_t i = 0; i < kPointwise.size(); ++i) {
    if (kPointwise[i].name == text) {
      value = static_cast<PointwiseMode>(i);
      return true;
    }
  }
  return false;
}
bool from_name(std::string_view text, DiagonalAlignment& value) {
  return find(kAlignments, text, value);
}
bool from_name(std::string_view text, RopePairing& value) { return find(kPairings, text, value); }

std::string choices(PointwiseMode) {
  std::string all;
  for (const Spelling& one : kPointwise) all += (all.empty() ? "" : ", ") + std::string(one.name);
  return all;
}
std::string choices(DiagonalAlignment) { return fmt::format("{}", fmt::join(kAlignments, ", ")); }
std::string choices(RopePairing) { return fmt::format("{}", fmt::join(kPairings, ", ")); }

int arity(PointwiseMode mode) { return kPointwise[static_cast<size_t>(mode)].arity; }
bool is_predicate(PointwiseMode mode) {
  return mode >= PointwiseMode::cmp_eq && mode <= PointwiseMode::logical_not;
}
bool is_activation(PointwiseMode mode) {
  return mode >= PointwiseMode::relu_fwd && mode <= PointwiseMode::swish_bwd;
}

}  // namespace heddle::graph
