#include "fusion/rope_prologue.h"

namespace heddle::fusion {

problem::Rope rope_prologue(const graph::Graph& graph, const graph::Rope& op, Operands& operands) {
  problem::Rope rope;
  rope.pairing = op.pairing == graph::RopePairing::halves ? problem::Rope::Pairing::halves
                                                          : problem::Rope::Pairing::interleaved;
  const int64_t columns = graph[op.x].dims[3];
  rope.rope_dim = static_cast<int32_t>(op.rope_dim > 0 ? op.rope_dim : columns);
  rope.first_column = op.leading ? 0 : static_cast<int32_t>(columns) - rope.rope_dim;
  rope.angles = operands.add(op.freqs);
  rope.cosines = operands.add(op.cosines);
  rope.sines = operands.add(op.sines);
  rope.positions = operands.add(op.positions);
  rope.positions_per_row = op.positions != graph::kNone && graph[op.positions].dims[2] > 1;
  return rope;
}

}  // namespace heddle::fusion
