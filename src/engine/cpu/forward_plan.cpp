#include "engine/cpu/forward_plan.h"

#include <fmt/format.h>

#include "engine/cpu/attention_binding.h"
#include "engine/cpu/attention_check.h"
#include "engine/cpu/forward_tiles.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/machine.h"
#include "engine/cpu/parallel.h"

namespace heddle::engine::cpu {

namespace {

class ForwardPlan final : public Plan {
 public:
  explicit ForwardPlan(const problem::AttentionProblem& problem)
      : binding_(problem.structure, problem.sizes),
        isa_(active_isa().isa),
        kernels_(kernels_of(isa_)),
        workers_(worker_count()),
        tiles_(forward_tiles(problem.structure, problem.sizes,
                             {workers_, l2_bytes(), kernels_.panel_rows})) {
    AttentionArguments& a = shape_.a;
    const problem::AttentionSizes& z = problem.sizes;
    a.batch = z.batch, a.q_heads = z.q_heads, a.q_length = z.q_length;
    a.qk_dim = problem.structure.qk_head_dim, a.v_dim = problem.structure.v_head_dim;
    a.score.is_identity = problem.structure.score.is_identity();
    a.score.count = static_cast<int32_t>(problem.structure.score.nodes.size());
    a.dropout.kind = static_cast<DropoutKind>(problem.structure.dropout.kind);
    shape_.group = tiles_.group, shape_.tile_rows = tiles_.tile_rows;
    shape_.splits = tiles_.splits, shape_.split_keys = tiles_.split_keys;
    scratch_bytes_ = (kernels_.forward_scratch_bytes(shape_) + 4095) / 4096 * 4096;
    WorkspaceCursor cursor(nullptr);
    binding_.measure(cursor);
    carve(cursor, shape_);
    workspace_bytes_ = cursor.used();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    WorkspaceCursor cursor(workspace);
    AttentionBinding::Result bound;
    HEDDLE_TRY(binding_.bind(buffers, cursor, bound));
    ForwardPass pass = shape_;
    pass.a = bound.arguments;
    char* scratch = carve(cursor, pass);

    const int64_t groups = pass.a.q_heads / pass.group;
    const int64_t tasks = tiles_.tiles * pass.a.batch * groups * pass.splits;
    if (pass.a.q_length == 0) return {};
    for_each_task(tasks, workers_, [&](int64_t task, int worker) {
      const int64_t split = task % pass.splits, group = task / pass.splits % groups;
      const int64_t b = task / pass.splits / groups % pass.a.batch,
                    tile = task / pass.splits / groups / pass.a.batch;
      const ForwardTask work{b, group * pass.group,
                             tiles_.order[static_cast<size_t>(tile)] * pass.tile_rows, split};
      kernels_.forward(pass, work, scratch + worker * scratch_bytes_);
    });
    if (pass.splits > 1) {
      for_each_task(pass.a.batch * pass.a.q_heads, workers_, [&](int64_t task, int worker) {
        kernels_.combine(pass, task / pass.a.q_heads, task % pass.a.q_heads, 0, pass.a.q_length,
                         scratch + worker * scratch_bytes_);
      });
    }
    return {};
  }

  std::string description() const override {
    return fmt::format("cpu flash attention forward, {}, {} workers, tiles of {} rows x {} keys{}",
                       name(isa_), workers_, tiles_.tile_rows, kForwardKeys,
                       tiles_.splits > 1 ? fmt::format(", keys in {} parts", tiles_.splits) : "");
  }

 private:
  /// Takes what the pass and its workers need; returns the workers' scratch memory.
  char* carve(WorkspaceCursor& cursor, ForwardPass& pass) const {
    if (pass.splits > 1) {
      const int64_t rows = pass.splits * pass.a.batch * pass.a.q_heads * pass.a.q_length;
      pass.partial_o = cursor.take<float>(rows * pass.a.v_dim);
      pass.partial_max = cursor.take<float>(rows);
      pass.partial_sum = cursor.take<float>(rows);
    }
    return cursor.take<char>(workers_ * scratch_bytes_);
  }

  AttentionBinding binding_;
  Isa isa_;
  const Kernels& kernels_;
  int workers_;
  ForwardTiles tiles_;
  ForwardPass shape_{};
  int64_t scratch_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Plan>> plan_forward(const problem::AttentionProblem& problem) {
  HEDDLE_TRY(check(problem));
  return std::shared_ptr<const Plan>(std::make_shared<ForwardPlan>(problem));
}

}  // namespace heddle::engine::cpu
