#include "engine/cpu/attention_binding.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dropout_bits.h"
#include "core/dtype.h"

namespace heddle::engine::cpu {

using problem::kAbsent;
using problem::OperandId;

namespace {

/// Element `index` of a vector of integers, exactly; 32 bits are sign-extended if signed.
int64_t integer_of(const View& v, int64_t index) {
  const char* p = v.data + index * *std::max_element(v.stride, v.stride + 4) * v.element_bytes;
  if (v.element_bytes == 8) {
    int64_t wide;
    std::memcpy(&wide, p, sizeof wide);
    return wide;
  }
  int32_t narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  if (v.element == Element::u32) return static_cast<uint32_t>(narrow);  // no type of both
  return narrow;
}

/// A scalar.
double number_of(const View& v) { return load(static_cast<DataType>(v.element), v.data, 0); }

/// Booleans that the score is -inf without; one of them if it takes several.
OperandId boolean_mask_of(const problem::AttentionStructure& s) {
  const auto& nodes = s.score.nodes;
  const auto at = [&](int32_t n) -> const problem::ScoreNode& {
    return nodes[static_cast<size_t>(n)];
  };
  const problem::ScoreNode& root = at(s.score.root);
  if (root.op != problem::ScoreOp::select || at(root.c).op != problem::ScoreOp::constant ||
      at(root.c).value != -std::numeric_limits<double>::infinity())
    return kAbsent;
  std::vector<bool> is_needed(nodes.size());
  is_needed[static_cast<size_t>(root.a)] = true;
  for (int32_t n = root.a; n >= 0; --n) {  // operands come before what reads them
    if (!is_needed[static_cast<size_t>(n)]) continue;
    const problem::ScoreNode& node = at(n);
    if (node.op == problem::ScoreOp::logical_and) {
      is_needed[static_cast<size_t>(node.a)] = true;
      is_needed[static_cast<size_t>(node.b)] = true;
    } else if (node.op == problem::ScoreOp::load &&
               s.type(node.operand).dtype == DataType::boolean) {
      return node.operand;
    }
  }
  return kAbsent;
}

/// The vectors among the operands (lengths, offsets) are read by their batch stride.
void read_as_vector(View* views, OperandId id) {
  if (id != kAbsent)
    views[id].stride[0] = *std::max_element(views[id].stride, views[id].stride + 4);
}

}  // namespace

bool is_f64(const problem::AttentionStructure& structure) {
  return structure.type(structure.q).dtype == DataType::f64;
}

Products packed_products(const problem::AttentionStructure& s, const KernelShape& shape) {
  const auto are = [&](DataType dtype) {
    return s.type(s.q).dtype == dtype && s.type(s.k).dtype == dtype && s.type(s.v).dtype == dtype;
  };
  if (are(DataType::bf16)) return shape.of_bf16;
  // A backward makes scores anew, and weights lose what these differ from those that the statistics
  // are of: it multiplies as the forward did. Three parts pay in a forward alone (16 Sapphire
  // Rapids cores, d 128: 1.0 to 1.23 of single numbers' speed, with a backward 0.83 to 0.91; one
  // core 1.5; two parts 1.5 and 1.27), and gradients of operands that a score loads are made in
  // single numbers.
  const bool has_backward = s.stats != kAbsent || s.max != kAbsent || s.sum_exp != kAbsent;
  const bool loads = std::any_of(s.score.nodes.begin(), s.score.nodes.end(), [](const auto& node) {
    return node.op == problem::ScoreOp::load;
  });
  if (are(DataType::f16)) return has_backward && loads ? Products::singles : shape.of_f16;
  return are(DataType::f32) && !has_backward ? shape.of_f32 : Products::singles;
}

std::string_view words_of(Products products) {
  switch (products) {
    case Products::singles:
      return "";
    case Products::pairs:
      return ", bf16 products";
    case Products::tiles:
      return ", bf16 products by tiles";
    case Products::tiles_of_halves:
      return ", products by tiles of two bf16 parts";
    case Products::tiles_of_thirds:
      return ", products by tiles of three bf16 parts";
  }
  return "";
}

Status check_workspace(const void* workspace) {
  if (workspace && reinterpret_cast<uintptr_t>(workspace) % 64 == 0) return {};
  return error(Code::invalid_variant_pack,
               "attention: the workspace is {}, but must be memory aligned to 64 bytes",
               workspace ? "not aligned" : "null");
}

AttentionBinding::AttentionBinding(const problem::AttentionStructure& structure,
                                   const problem::AttentionSizes& sizes,
                                   std::vector<problem::ScoreExpression> derivatives)
    : structure_(structure),
      sizes_(sizes),
      expressions_(std::move(derivatives)),
      boolean_mask_(boolean_mask_of(structure)) {
  expressions_.insert(expressions_.begin(), structure.score);
}

void AttentionBinding::measure(WorkspaceCursor& workspace) const {
  workspace.take<View>(static_cast<int64_t>(structure_.operands.size()));
  workspace.take<Bound>(static_cast<int64_t>(structure_.bounds.size()));
  workspace.take<Score>(static_cast<int64_t>(expressions_.size()));
  for (const problem::ScoreExpression& e : expressions_)
    workspace.take<ScoreStep>(static_cast<int64_t>(e.nodes.size()));
}

Status AttentionBinding::bind_views(std::span<void* const> buffers, View* views) const {
  HEDDLE_TRY(views_of("attention", structure_, sizes_, buffers, views));
  for (const problem::OperandType& type : structure_.operands)
    read_as_vector(views, type.storage.offsets());
  for (OperandId id : {structure_.q_lengths, structure_.kv_lengths, structure_.dropout.seed})
    read_as_vector(views, id);
  return {};
}

Status AttentionBinding::bind(std::span<void* const> buffers, WorkspaceCursor& workspace,
                              Result& out) const {
  const problem::AttentionStructure& s = structure_;
  View* views = workspace.take<View>(static_cast<int64_t>(s.operands.size()));
  HEDDLE_TRY(bind_views(buffers, views));
  const auto view = [&](OperandId id) -> const View* {
    return id == kAbsent ? nullptr : &views[id];
  };

  auto* bounds = workspace.take<Bound>(static_cast<int64_t>(s.bounds.size()));
  for (size_t n = 0; n < s.bounds.size(); ++n) {
    bounds[n] = {s.bounds[n].upper, static_cast<uint8_t>(s.bounds[n].anchor),
                 sizes_.bound_constants[n]};
  }
  auto* scores = workspace.take<Score>(static_cast<int64_t>(expressions_.size()));
  for (size_t e = 0; e < expressions_.size(); ++e) {
    const auto& nodes = expressions_[e].nodes;
    auto* steps = workspace.take<ScoreStep>(static_cast<int64_t>(nodes.size()));
    for (size_t n = 0; n < nodes.size(); ++n) {
      steps[n] = {static_cast<uint8_t>(nodes[n].op),
                  nodes[n].a,
                  nodes[n].b,
                  nodes[n].c,
                  nodes[n].value,
                  view(nodes[n].operand)};
    }
    const problem::ScoreOp root = nodes[static_cast<size_t>(expressions_[e].root)].op;
    scores[e] = {steps, static_cast<int32_t>(nodes.size()), expressions_[e].root,
                 root == (e == 0 ? problem::ScoreOp::dot : problem::ScoreOp::gradient)};
  }
  out.views = views;
  out.derivatives = scores + 1;

  AttentionArguments& a = out.arguments;
  a = {};
  a.batch = sizes_.batch, a.q_heads = sizes_.q_heads, a.k_heads = sizes_.k_heads,
  a.v_heads = sizes_.v_heads;
  a.q_length = sizes_.q_length, a.kv_length = sizes_.kv_length;
  a.qk_dim = s.qk_head_dim, a.v_dim = s.v_head_dim;
  a.scale = s.scale == kAbsent ? sizes_.scale : number_of(views[s.scale]);
  a.log2_input = s.softmax_input_is_log2, a.stats_log2 = s.stats_log2;
  a.score = scores[0];
  a.bounds = bounds, a.bound_count = static_cast<int32_t>(s.bounds.size());
  a.q = view(s.q), a.k = view(s.k), a.v = view(s.v), a.o = view(s.o);
  a.stats = view(s.stats), a.max = view(s.max), a.sum_exp = view(s.sum_exp);
  a.scores = view(s.scores), a.scores_after_softmax = s.scores_after_softmax;
  a.block_mask = view(s.block_mask), a.sink = view(s.sink), a.boolean_mask = view(boolean_mask_);
  a.q_lengths = view(s.q_lengths), a.kv_lengths = view(s.kv_lengths);
  a.q_lengths_cumulative = s.q_lengths_cumulative,
  a.kv_lengths_cumulative = s.kv_lengths_cumulative;

  DropoutArguments& d = a.dropout;
  d.kind = static_cast<DropoutKind>(s.dropout.kind);
  d.factor = sizes_.kept_factor();
  if (s.dropout.mask_scale != kAbsent) d.factor = number_of(views[s.dropout.mask_scale]);
  d.streams = view(s.dropout.streams), d.mask = view(s.dropout.mask), d.dump = view(s.dropout.dump);
  if (d.kind == DropoutKind::philox) {
    const PhiloxRule rule = philox_rule(sizes_.dropout_probability);
    d.low = rule.low, d.keeps_low = rule.keeps_low;
    const uint64_t seed = static_cast<uint64_t>(integer_of(views[s.dropout.seed], 0));
    d.key[0] = static_cast<uint32_t>(seed), d.key[1] = static_cast<uint32_t>(seed >> 32);
    d.offset = s.dropout.offset == kAbsent
                   ? 0
                   : static_cast<uint64_t>(integer_of(views[s.dropout.offset], 0));
  } else if (d.kind == DropoutKind::threefry) {
    d.low = threefry_threshold(sizes_.dropout_probability), d.keeps_low = true;
    d.key[0] = static_cast<uint32_t>(integer_of(views[s.dropout.seed], 0));
    d.key[1] = static_cast<uint32_t>(integer_of(views[s.dropout.seed], 1));
    for (int n = 0; n < 4; ++n) d.threefry_strides[n] = sizes_.threefry_strides[n];
  }
  return {};
}

}  // namespace heddle::engine::cpu
