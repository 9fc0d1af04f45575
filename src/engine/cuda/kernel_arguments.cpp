#include "engine/cuda/kernel_arguments.h"

#include <fmt/format.h>

namespace heddle::engine::cuda {

using attention::ArgumentLayout;
using attention::BackwardParameters;
using attention::ForwardParameters;

ArgumentLayout argument_layout_of(const problem::AttentionStructure& structure, size_t loads) {
  using problem::kAbsent;
  const auto is_apart = [&](problem::OperandId id) {
    const problem::Storage& storage = structure.type(id).storage;
    return storage.is_paged() || storage.is_ring();
  };
  ArgumentLayout layout;
  layout.operands = layout.output = layout.row_gradients = layout.key_gradients = true;
  layout.bounds = static_cast<int>(structure.bounds.size());
  layout.loads = static_cast<int>(loads);
  layout.row_sums = structure.max != kAbsent || structure.sum_exp != kAbsent;
  layout.dropout = structure.dropout.kind != problem::Dropout::Kind::none;
  layout.sparse = structure.block_mask != kAbsent || is_apart(structure.k) || is_apart(structure.v);
  layout.codes =
      structure.type(structure.k).holds_codes() || structure.type(structure.v).holds_codes();
  return layout;
}

std::string argument_layout_source(const ArgumentLayout& layout) {
  return fmt::format(
      "#define HEDDLE_ARGUMENT_LAYOUT {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, "
      "{}, {}, {}, {}, {}}}\n",
      layout.bounds, layout.loads, layout.operands, layout.output, layout.row_sums, layout.dropout,
      layout.sparse, layout.row_gradients, layout.key_gradients, layout.load_gradient, layout.maps,
      layout.tiled, layout.pairs, layout.rope, layout.stats_gradient, layout.largest_gradient,
      layout.codes, layout.scores, layout.tiled_gradient);
}

void KernelArguments::add_forward(const ForwardParameters& all, const ArgumentLayout& layout) {
  using namespace attention;
  add_part<Operands<true>>(layout.operands, all);
  add_part<Output<true>>(layout.output, all);
  first_batch_ = &add(static_cast<const CommonParameters*>(&all))->first_batch;
  add_part<RowSums<true>>(layout.row_sums, all);
  add_part<ScoreResult<true>>(layout.scores, all);
  add_part<DropoutParameters<true>>(layout.dropout, all);
  add_part<SparseOperands<true>>(layout.sparse, all);
  add_part<CodeScales<true>>(layout.codes, all);
  add(all.loads, layout.loads);
  // Their count, and as many as there are.
  if (layout.bounds > 0)
    add_bytes(&all.bound_count,
              sizeof(Bounds<1>) + sizeof(Bound) * static_cast<size_t>(layout.bounds - 1));
}

void KernelArguments::add_backward(const BackwardParameters& all, const ArgumentLayout& layout) {
  using namespace attention;
  add_part<RowGradients<true>>(layout.row_gradients, all);
  add_part<KeyGradients<true>>(layout.key_gradients, all);
  add_part<LoadGradient<true>>(layout.load_gradient, all);
  add_part<StatsGradient<true>>(layout.stats_gradient, all);
  add_part<LargestGradient<true>>(layout.largest_gradient, all);
  add_forward(all.forward, layout);
  add_address(all.delta);
  add_address(all.d_sink);
}

KernelArguments::KernelArguments(const ForwardParameters& all, const ArgumentLayout& layout) {
  add_forward(all, layout);
}

KernelArguments::KernelArguments(const BackwardParameters& all, const ArgumentLayout& layout) {
  add_backward(all, layout);
}

KernelArguments::KernelArguments(const sm80::DecodeArguments& all, const ArgumentLayout& layout) {
  add_part<sm80::DecodeMaps<true>>(layout.maps, all);
  add(&all.parts);
  add(&all.rows);
  add(&all.split);
  add(&all.counts);
  add_forward(all.problem, layout);
}

KernelArguments::KernelArguments(const sm90::ForwardArguments& all, const ArgumentLayout& layout) {
  add_part<sm90::ForwardMaps<true>>(layout.maps, all);
  add_part<sm90::ScoreTiles<true>>(layout.tiled, all);
  add_part<sm90::ForwardPairs<true>>(layout.pairs, all);
  add_part<sm90::QueryRope<true>>(layout.rope, all);
  add_address(all.sequence_maps);
  add(&all.order);
  add(&all.dots);
  add_forward(all.problem, layout);
}

KernelArguments::KernelArguments(const sm90::BackwardArguments& all, const ArgumentLayout& layout) {
  add_part<sm90::BackwardMaps<true>>(layout.maps, all);
  add_part<sm90::ScoreTiles<true>>(layout.tiled, all);
  add_part<sm90::ScoreTileGradient<true>>(layout.tiled_gradient, all);
  add_part<sm90::BackwardPairs<true>>(layout.pairs, all);
  add_part<sm90::BackwardWorkspace>(true, all);
  add_backward(all.problem, layout);
}

}  // namespace heddle::engine::cuda
