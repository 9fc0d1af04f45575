#include "engine/cpu/forward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "engine/cpu/attention_binding.h"
#include "engine/cpu/attention_check.h"
#include "engine/cpu/dropout_dump.h"
#include "engine/cpu/forward_path.h"
#include "engine/cpu/forward_tiles.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/machine.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/rope_stage.h"

namespace heddle::engine::cpu {

using problem::AllowedPaths;
using problem::AttentionPath;
using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::ChosenPath;

namespace {

/// Up to so many blocks of keys lose no more than a rounding or two: to keep it takes time and
/// memory.
constexpr int64_t kMostBlocksWithoutLost = 16;

Status check_allowed(const AttentionStructure& s, const AllowedPaths& allowed) {
  if (allowed.has(AttentionPath::flash)) return {};
  if (!allowed.has(AttentionPath::memory_efficient))
    return error(Code::graph_not_supported,
                 "cpu: every path that serves an attention is switched off: {}", allowed.words());
  if (s.max == problem::kAbsent) return {};
  return error(Code::graph_not_supported,
               "cpu: maxima of rows are results, which flash alone gives, and paths are switched "
               "off: {}",
               allowed.words());
}

ChosenPath chosen(const AttentionProblem& p, const KernelShape& shape,
                  const AllowedPaths& allowed) {
  const AttentionPath path = forward_path(p.structure, p.sizes, shape, allowed);
  const int64_t rows = group_rows(p.sizes);
  std::string reason;
  switch (path) {
    case AttentionPath::decode:
      reason = fmt::format("the {} rows that share keys are at most {}: keys stay where they lie",
                           rows, shape.few_rows);
      break;
    case AttentionPath::flash:
      reason = p.structure.max != problem::kAbsent
                   ? "maxima of rows are results, of keys that are packed"
               : rows > shape.few_rows
                   ? fmt::format("the {} rows that share keys are more than {}: keys are packed",
                                 rows, shape.few_rows)
                   : "keys are packed";
      break;
    case AttentionPath::memory_efficient:
      reason = fmt::format("tiles of {} rows, keys stay where they lie", shape.few_rows);
      break;
  }
  if (const std::string off = allowed.words(); !off.empty()) reason += "; switched off: " + off;
  return {path, std::move(reason)};
}

/// Of ForwardPass: f8e4m3 is bf16 to tiles, other codes are whole numbers of 8 bits.
int32_t code_bytes(const AttentionStructure& s, const KernelShape& shape, AttentionPath path) {
  int32_t most = 0;
  if (shape.of_bf16 != Products::tiles || path == AttentionPath::flash) return most;
  for (problem::OperandId id : {s.k, s.v}) {
    const problem::OperandType& type = s.type(id);
    if (type.holds_codes()) most = std::max(most, type.dtype == DataType::f8e4m3 ? 2 : 1);
  }
  return most;
}

/// What of a pass does not depend on how it is cut into tiles.
template <class Real>
ForwardPass<Real> pass_of(const AttentionProblem& p, const KernelShape& shape, AttentionPath path) {
  const AttentionStructure& s = p.structure;
  const AttentionSizes& z = p.sizes;
  ForwardPass<Real> pass{};
  AttentionArguments& a = pass.a;
  a.batch = z.batch, a.q_heads = z.q_heads, a.q_length = z.q_length;
  a.qk_dim = s.qk_head_dim, a.v_dim = s.v_head_dim;
  a.score.is_identity = s.score.is_identity();
  a.score.count = static_cast<int32_t>(s.score.nodes.size());
  a.dropout.kind = static_cast<DropoutKind>(s.dropout.kind);
  pass.has_few_rows = path != AttentionPath::flash;
  pass.products = products_of(s, shape, path);
  pass.code_bytes = code_bytes(s, shape, path);
  const bool has_backward = s.stats != problem::kAbsent || s.max != problem::kAbsent;
  pass.keeps_lost = has_backward && pass.products == Products::singles &&
                    s.type(s.o).dtype == s.type(s.q).dtype &&
                    (s.type(s.q).dtype == DataType::f32 || is_f64(s)) &&
                    z.kv_length > kMostBlocksWithoutLost * kForwardKeys;
  return pass;
}

template <class Real>
class ForwardPlan final : public Plan {
 public:
  ForwardPlan(const AttentionProblem& p, const AllowedPaths& allowed)
      : binding_(p.structure, p.sizes),
        isa_(active_isa().isa),
        kernels_(attention_kernels_of<Real>(isa_)),
        path_(chosen(p, kernels_.shape, allowed)),
        workers_(worker_count()),
        tiles_(forward_tiles(p.structure, p.sizes, machine_shape(p.structure))),
        q_rope_(p.structure.q_rope, rotated_queries(p.structure, p.sizes), p.structure),
        k_rope_(p.structure.k_rope, rotated_keys(p.structure, p.sizes), p.structure) {
    shape_ = pass_of<Real>(p, kernels_.shape, path_.path);
    shape_.group = tiles_.group, shape_.tile_rows = tiles_.tile_rows;
    shape_.splits = tiles_.splits;
    shape_.scratch = forward_scratch(shape_, kernels_.shape);
    for (const KernelShape& shape : attention_shapes<Real>())
      workspace_bytes_ =
          std::max(workspace_bytes_,
                   most_bytes(p, shape, forward_path(p.structure, p.sizes, shape, allowed)));
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    AttentionBinding::Result bound;
    HEDDLE_TRY(binding_.bind(buffers, cursor, bound));
    ForwardPass<Real> pass = shape_;
    pass.a = bound.arguments;
    Memory memory;
    carve(cursor, bound.views, tiles_.splits > 1 ? tiles_.splits * rows() : 0, pass, memory);
    const Workers workers{workers_, cursor.take<char>(0), workspace_bytes_ - cursor.used()};
    rotate(pass.a, memory, workers);
    attend(pass, memory.parts_left, workers);
    if (pass.a.scores) write_scores(pass, workers);
    if (pass.a.dropout.dump) dump_dropout(pass.a, kernels_, workers);
    return {};
  }

  const ChosenPath* attention_path() const override { return &path_; }

  std::string description() const override {
    return fmt::format("flash attention forward, {}{}, {} workers, tiles of {} rows x {} keys{}",
                       name(isa_),
                       shape_.code_bytes > 0 ? ", keys where they lie, codes by tiles"
                       : shape_.has_few_rows ? ", keys where they lie"
                                             : words_of(shape_.products),
                       workers_, tiles_.tile_rows, kForwardKeys,
                       tiles_.splits > 1 ? fmt::format(", keys in {} parts", tiles_.splits) : "");
  }

 private:
  struct Memory {
    RopePass<Real> q_rope, k_rope;
    View rotated_q, rotated_k;
    int64_t* parts_left;
  };

  MachineShape machine_shape(const AttentionStructure& s) const {
    const KernelShape& shape = kernels_.shape;
    const bool few = path_.path != AttentionPath::flash;
    const Products products = products_of(s, shape, path_.path);
    return {workers_, l2_bytes(), few ? shape.few_rows : panel_rows(shape, products),
            parts_of(products), few ? shape.few_rows : MachineShape::kNoLimit};
  }

  int64_t rows() const { return shape_.a.batch * shape_.a.q_heads * shape_.a.q_length; }

  /// Takes what the pass needs beside its workers' scratch, with so many rows of parts of the
  /// output. Views are null when only measuring.
  void carve(WorkspaceCursor& cursor, const View* views, int64_t part_rows, ForwardPass<Real>& pass,
             Memory& memory) const {
    pass.partial_o = cursor.take<Real>(part_rows * pass.a.v_dim);
    pass.partial_max = cursor.take<Real>(part_rows);
    pass.partial_sum = cursor.take<Real>(part_rows);
    memory.parts_left = cursor.take<int64_t>(part_rows);  // as many at most
    if (q_rope_.is_present()) memory.q_rope = q_rope_.bind(cursor, views, true, memory.rotated_q);
    if (k_rope_.is_present()) memory.k_rope = k_rope_.bind(cursor, views, true, memory.rotated_k);
  }

  /// Room for the pass on any machine whose instruction set has this shape.
  int64_t most_bytes(const AttentionProblem& p, const KernelShape& shape,
                     AttentionPath path) const {
    const bool few = path != AttentionPath::flash;
    ForwardPass<Real> pass = pass_of<Real>(p, shape, path);
    const MostForwardTiles most =
        few ? most_forward_tiles(p.structure, p.sizes, shape.few_rows, shape.few_rows)
            : most_forward_tiles(p.structure, p.sizes, panel_rows(shape, pass.products));
    WorkspaceCursor cursor(nullptr);
    binding_.measure(cursor);
    Memory memory;
    carve(cursor, nullptr, most.parts * most.part_rows, pass, memory);
    // Every worker's scratch, rounded up, and their rows wherever they are.
    const int64_t empty = forward_scratch(pass, shape).bytes;
    // A tile of few rows has the memory of a panel.
    pass.tile_rows = few ? most.workers * shape.panel_rows : most.rows;
    return cursor.used() + most.workers * (empty + kScratchAlignment) +
           forward_scratch(pass, shape).bytes - empty;
  }

  void rotate(AttentionArguments& a, const Memory& memory, const Workers& workers) const {
    if (q_rope_.is_present()) {
      RopeStage<Real>::run(memory.q_rope, a.batch, true, kernels_, workers);
      a.q = memory.q_rope.out;
    }
    if (k_rope_.is_present()) {
      RopeStage<Real>::run(memory.k_rope, a.batch, true, kernels_, workers);
      a.k = memory.k_rope.out;
    }
  }

  /// `parts_left`: of each group, given keys in parts.
  void attend(const ForwardPass<Real>& pass, int64_t* parts_left, const Workers& workers) const {
    if (pass.a.q_length == 0) return;
    const int64_t groups = pass.a.q_heads / pass.group, batch = pass.a.batch;
    if (pass.splits > 1) std::fill_n(parts_left, batch * groups, pass.splits);
    for_each_task(tiles_.tiles * batch * groups * pass.splits, workers, pass.scratch.bytes,
                  [&](int64_t task, char* scratch) {
                    const int64_t split = task % pass.splits, group = task / pass.splits % groups;
                    const int64_t b = task / pass.splits / groups % batch;
                    const int64_t tile =
                        tiles_.order[static_cast<size_t>(task / pass.splits / groups / batch)];
                    const int64_t first_head = group * pass.group;
                    kernels_.forward(pass, {b, first_head, tile * pass.tile_rows, split}, scratch);
                    if (pass.splits == 1) return;
                    // Whoever is last puts the parts together: to call all workers once more takes
                    // as long as reading a megabyte.
                    std::atomic_ref<int64_t> left(parts_left[b * groups + group]);
                    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
                    for (int64_t h = first_head; h < first_head + pass.group; ++h)
                      kernels_.combine(pass, b, h, 0, pass.a.q_length, scratch);
                  });
  }

  void write_scores(const ForwardPass<Real>& pass, const Workers& workers) const {
    const int64_t heads = pass.a.q_heads, rows = pass.a.q_length;
    for_each_task(pass.a.batch * heads * rows, workers, pass.scratch.bytes,
                  [&](int64_t task, char* scratch) {
                    kernels_.write_scores(pass, task / rows / heads, task / rows % heads,
                                          task % rows, scratch);
                  });
  }

  AttentionBinding binding_;
  Isa isa_;
  const AttentionKernels<Real>& kernels_;
  ChosenPath path_;
  int workers_;
  ForwardTiles tiles_;
  RopeStage<Real> q_rope_, k_rope_;
  ForwardPass<Real> shape_{};
  int64_t workspace_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Plan>> plan_forward(const AttentionProblem& problem,
                                                 const problem::AllowedPaths& allowed) {
  HEDDLE_TRY(check(problem));
  HEDDLE_TRY(check_allowed(problem.structure, allowed));
  if (is_f64(problem.structure))
    return std::shared_ptr<const Plan>(std::make_shared<ForwardPlan<double>>(problem, allowed));
  return std::shared_ptr<const Plan>(std::make_shared<ForwardPlan<float>>(problem, allowed));
}

}  // namespace heddle::engine::cpu
