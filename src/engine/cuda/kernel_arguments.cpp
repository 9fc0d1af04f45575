#include "engine/cuda/kernel_arguments.h"

#include <fmt/format.h>

namespace heddle::engine::cuda {

using attention::BackwardParameters;
using attention::ForwardParameters;
using attention::Room;

Room room_of(const problem::AttentionStructure& structure, size_t loads) {
  using problem::kAbsent;
  const auto paged = [&](problem::OperandId id) {
    return structure.type(id).page_table != kAbsent;
  };
  Room room;
  room.operands = room.output = room.row_gradients = room.key_gradients = true;
  room.bounds = static_cast<int>(structure.bounds.size());
  room.loads = static_cast<int>(loads);
  room.row_sums = structure.max != kAbsent || structure.sum_exp != kAbsent;
  room.dropout = structure.dropout.kind != problem::Dropout::Kind::none;
  room.sparse = structure.block_mask != kAbsent || paged(structure.k) || paged(structure.v);
  return room;
}

std::string room_source(const Room& room) {
  return fmt::format(
      "#define HEDDLE_ROOM {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}\n",
      room.bounds, room.loads, room.operands, room.output, room.row_sums, room.dropout, room.sparse,
      room.row_gradients, room.key_gradients, room.load_gradient, room.maps, room.tiled, room.pairs,
      room.rope);
}

void KernelArguments::add_forward(const ForwardParameters& all, const Room& room) {
  using namespace attention;
  add_part<Operands<true>>(room.operands, all);
  add_part<Output<true>>(room.output, all);
  first_batch_ = &add(static_cast<const CommonParameters*>(&all))->first_batch;
  add_part<RowSums<true>>(room.row_sums, all);
  add_part<DropoutParameters<true>>(room.dropout, all);
  add_part<SparseOperands<true>>(room.sparse, all);
  add(all.loads, room.loads);
  // Their count, and as many as there are.
  if (room.bounds > 0)
    add_bytes(&all.bound_count,
              sizeof(Bounds<1>) + sizeof(Bound) * static_cast<size_t>(room.bounds - 1));
}

void KernelArguments::add_backward(const BackwardParameters& all, const Room& room) {
  using namespace attention;
  add_part<RowGradients<true>>(room.row_gradients, all);
  add_part<KeyGradients<true>>(room.key_gradients, all);
  add_part<LoadGradient<true>>(room.load_gradient, all);
  add_forward(all.forward, room);
  add_address(all.delta);
  add_address(all.d_sink);
}

KernelArguments::KernelArguments(const ForwardParameters& all, const Room& room) {
  add_forward(all, room);
}

KernelArguments::KernelArguments(const BackwardParameters& all, const Room& room) {
  add_backward(all, room);
}

KernelArguments::KernelArguments(const sm90::ForwardArguments& all, const Room& room) {
  add_part<sm90::ForwardMaps<true>>(room.maps, all);
  add_part<sm90::ScoreTiles<true>>(room.tiled, all);
  add_part<sm90::ForwardPairs<true>>(room.pairs, all);
  add_part<sm90::QueryRope<true>>(room.rope, all);
  add_address(all.sequence_maps);
  add(&all.order);
  add_forward(all.problem, room);
}

KernelArguments::KernelArguments(const sm90::BackwardArguments& all, const Room& room) {
  add_part<sm90::BackwardMaps<true>>(room.maps, all);
  add_part<sm90::ScoreTiles<true>>(room.tiled, all);
  add_part<sm90::BackwardPairs<true>>(room.pairs, all);
  add_part<sm90::BackwardWorkspace>(true, all);
  add_backward(all.problem, room);
}

}  // namespace heddle::engine::cuda
