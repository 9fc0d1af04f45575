#include "engine/cpu/rope_stage.h"

#include <algorithm>

#include "core/rounding.h"

namespace heddle::engine::cpu {

using problem::kAbsent;

namespace {

constexpr int64_t kRowsPerTask = 64;

}  // namespace

template <class Real>
RopeStage<Real>::RopeStage(const std::optional<problem::Rope>& rope, const Rotated& of,
                           const problem::AttentionStructure& s)
    : rope_(of.x == kAbsent ? std::nullopt : rope), of_(of) {
  if (!rope_) return;
  dtype_ = s.type(of.x).dtype;
  lengths_ = of.is_query ? s.q_lengths : s.kv_lengths;
  lengths_cumulative_ = of.is_query ? s.q_lengths_cumulative : s.kv_lengths_cumulative;
  per_batch_ = rope_->positions != kAbsent;
}

template <class Real>
RopePass<Real> RopeStage<Real>::bind(WorkspaceCursor& workspace, const View* views, bool needs_copy,
                                     View& copy) const {
  const problem::Rope& rope = *rope_;
  RopePass<Real> pass{};
  const auto view = [&](problem::OperandId id) {
    return id == kAbsent || !views ? nullptr : &views[id];
  };
  pass.angles = view(rope.angles), pass.cosines = view(rope.cosines), pass.sines = view(rope.sines);
  pass.positions = view(rope.positions);
  pass.per_row = rope.positions_per_row;
  pass.interleaved = rope.pairing == problem::Rope::Pairing::interleaved;
  pass.inverse = of_.inverse;
  pass.rope_dim = rope.rope_dim, pass.first_column = rope.first_column;
  pass.length = of_.length;
  pass.table_batches = per_batch_ ? of_.batch : 1;
  pass.scale = static_cast<Real>(of_.scale);
  pass.table = workspace.take<Real>(pass.table_batches * of_.length * rope.rope_dim);
  pass.in = view(of_.x), pass.out = view(rope.rotated);
  pass.lengths = view(lengths_), pass.lengths_cumulative = lengths_cumulative_;
  pass.heads = of_.heads, pass.columns = of_.columns;
  if (needs_copy && rope.rotated == kAbsent) {
    const Dims dims{of_.batch, of_.heads, of_.length, of_.columns};
    char* data =
        workspace.take<char>(of_.batch * of_.heads * of_.length * of_.columns * size_of(dtype_));
    copy = dense_view(data, dtype_, dims);
    pass.out = &copy;
  }
  return pass;
}

template <class Real>
void RopeStage<Real>::run(const RopePass<Real>& pass, int64_t batch, bool rotates,
                          const AttentionKernels<Real>& kernels, const Workers& workers) {
  const int64_t rows = pass.table_batches * pass.length;
  for_each_task(divide_up(rows, kRowsPerTask), workers.count, [&](int64_t task, int) {
    kernels.rope_table(pass, task * kRowsPerTask, std::min(rows, (task + 1) * kRowsPerTask));
  });
  if (!rotates) return;
  const int64_t tiles = divide_up(pass.length, kRowsPerTask);
  const int64_t row_bytes = round_up(pass.columns, 16) * int64_t{sizeof(Real)};
  for_each_task(batch * tiles, workers, row_bytes, [&](int64_t task, char* scratch) {
    const int64_t first = task % tiles * kRowsPerTask;
    kernels.rope_rows(pass, task / tiles, first, std::min(pass.length, first + kRowsPerTask),
                      reinterpret_cast<Real*>(scratch));
  });
}

template class RopeStage<float>;
template class RopeStage<double>;

Rotated rotated_queries(const problem::AttentionStructure& s, const problem::AttentionSizes& z) {
  return {s.q, z.batch, z.q_heads, z.q_length, s.qk_head_dim, z.q_rope_scale, false, true};
}
Rotated rotated_keys(const problem::AttentionStructure& s, const problem::AttentionSizes& z) {
  return {s.k, z.batch, z.k_heads, z.kv_length, s.qk_head_dim, z.k_rope_scale, false, false};
}

}  // namespace heddle::engine::cpu
