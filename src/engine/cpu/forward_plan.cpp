#include "engine/cpu/forward_plan.h"

#include <fmt/format.h>

#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/attention_check.h"
#include "engine/cpu/dropout_dump.h"
#include "engine/cpu/forward_tiles.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/machine.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/rope_stage.h"

namespace heddle::engine::cpu {

using problem::AttentionProblem;
using problem::AttentionStructure;

namespace {

class ForwardPlan final : public Plan {
 public:
  explicit ForwardPlan(const AttentionProblem& p)
      : binding_(p.structure, p.sizes),
        isa_(active_isa().isa),
        kernels_(kernels_of(isa_)),
        workers_(worker_count()),
        tiles_(forward_tiles(p.structure, p.sizes, {workers_, l2_bytes(), kernels_.panel_rows})),
        q_rope_(p.structure.q_rope, rotated_queries(p.structure, p.sizes), p.structure),
        k_rope_(p.structure.k_rope, rotated_keys(p.structure, p.sizes), p.structure) {
    AttentionArguments& a = shape_.a;
    const AttentionStructure& s = p.structure;
    a.batch = p.sizes.batch, a.q_heads = p.sizes.q_heads, a.q_length = p.sizes.q_length;
    a.qk_dim = s.qk_head_dim, a.v_dim = s.v_head_dim;
    a.score.is_identity = s.score.is_identity();
    a.score.count = static_cast<int32_t>(s.score.nodes.size());
    a.dropout.kind = static_cast<DropoutKind>(s.dropout.kind);
    shape_.group = tiles_.group, shape_.tile_rows = tiles_.tile_rows;
    // A backward takes the maximum from scores that it makes as packed keys make them, to the bit.
    shape_.has_few_rows =
        s.max == problem::kAbsent && tiles_.group * p.sizes.q_length <= kernels_.few_rows;
    shape_.pairs =
        !shape_.has_few_rows && kernels_.multiplies_pairs && are_bf16(s, {s.q, s.k, s.v});
    shape_.splits = tiles_.splits, shape_.split_keys = tiles_.split_keys;
    scratch_bytes_ = round_up(kernels_.forward_scratch_bytes(shape_), 4096);
    WorkspaceCursor cursor(nullptr);
    binding_.measure(cursor);
    Memory memory;
    carve(cursor, nullptr, shape_, memory);
    workspace_bytes_ = cursor.used();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    AttentionBinding::Result bound;
    HEDDLE_TRY(binding_.bind(buffers, cursor, bound));
    ForwardPass pass = shape_;
    pass.a = bound.arguments;
    Memory memory;
    carve(cursor, bound.views, pass, memory);
    rotate(pass.a, memory);
    attend(pass, memory.scratch);
    if (pass.a.dropout.dump)
      dump_dropout(pass.a, kernels_, workers_, memory.scratch, scratch_bytes_);
    return {};
  }

  std::string description() const override {
    return fmt::format("flash attention forward, {}{}, {} workers, tiles of {} rows x {} keys{}",
                       name(isa_),
                       shape_.has_few_rows ? ", keys where they lie"
                       : shape_.pairs      ? ", bf16 products"
                                           : "",
                       workers_, tiles_.tile_rows, kForwardKeys,
                       tiles_.splits > 1 ? fmt::format(", keys in {} parts", tiles_.splits) : "");
  }

 private:
  struct Memory {
    char* scratch;
    RopePass q_rope, k_rope;
    View rotated_q, rotated_k;
  };

  /// Takes what the pass and its workers need. Views are null when only measuring.
  void carve(WorkspaceCursor& cursor, const View* views, ForwardPass& pass, Memory& memory) const {
    if (pass.splits > 1) {
      const int64_t rows = pass.splits * pass.a.batch * pass.a.q_heads * pass.a.q_length;
      pass.partial_o = cursor.take<float>(rows * pass.a.v_dim);
      pass.partial_max = cursor.take<float>(rows);
      pass.partial_sum = cursor.take<float>(rows);
    }
    if (q_rope_.is_present()) memory.q_rope = q_rope_.bind(cursor, views, true, memory.rotated_q);
    if (k_rope_.is_present()) memory.k_rope = k_rope_.bind(cursor, views, true, memory.rotated_k);
    memory.scratch = cursor.take<char>(workers_ * scratch_bytes_);
  }

  void rotate(AttentionArguments& a, const Memory& memory) const {
    if (q_rope_.is_present()) {
      RopeStage::run(memory.q_rope, a.batch, true, kernels_, workers_, memory.scratch,
                     scratch_bytes_);
      a.q = memory.q_rope.out;
    }
    if (k_rope_.is_present()) {
      RopeStage::run(memory.k_rope, a.batch, true, kernels_, workers_, memory.scratch,
                     scratch_bytes_);
      a.k = memory.k_rope.out;
    }
  }

  void attend(const ForwardPass& pass, char* scratch) const {
    if (pass.a.q_length == 0) return;
    const int64_t groups = pass.a.q_heads / pass.group, batch = pass.a.batch;
    for_each_task(tiles_.tiles * batch * groups * pass.splits, workers_,
                  [&](int64_t task, int worker) {
                    const int64_t split = task % pass.splits, group = task / pass.splits % groups;
                    const int64_t b = task / pass.splits / groups % batch;
                    const int64_t tile =
                        tiles_.order[static_cast<size_t>(task / pass.splits / groups / batch)];
                    kernels_.forward(pass, {b, group * pass.group, tile * pass.tile_rows, split},
                                     scratch + worker * scratch_bytes_);
                  });
    if (pass.splits == 1) return;
    for_each_task(batch * pass.a.q_heads, workers_, [&](int64_t task, int worker) {
      kernels_.combine(pass, task / pass.a.q_heads, task % pass.a.q_heads, 0, pass.a.q_length,
                       scratch + worker * scratch_bytes_);
    });
  }

  AttentionBinding binding_;
  Isa isa_;
  const Kernels& kernels_;
  int workers_;
  ForwardTiles tiles_;
  RopeStage q_rope_, k_rope_;
  ForwardPass shape_{};
  int64_t scratch_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Plan>> plan_forward(const AttentionProblem& problem) {
  HEDDLE_TRY(check(problem));
  return std::shared_ptr<const Plan>(std::make_shared<ForwardPlan>(problem));
}

}  // namespace heddle::engine::cpu
