#include "engine/cpu/backward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/attention_check.h"
#include "engine/cpu/dropout_dump.h"
#include "engine/cpu/forward_path.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/rope_stage.h"

namespace heddle::engine::cpu {

using problem::AllowedPaths;
using problem::AttentionBackwardProblem;
using problem::AttentionBackwardStructure;
using problem::AttentionPath;
using problem::AttentionSizes;
using problem::kAbsent;
using problem::ScoreExpression;

namespace {

constexpr int64_t kRowsPerTask = 64;

/// The keys are cut into so many parts at most, and no further than into so many tasks of all
/// heads: each part has a dQ sum of its own in the workspace of every machine. 48 heads keep 64
/// workers busy so, and 8 heads 128.
constexpr int64_t kMostChunks = 16, kMostTasks = 192;

std::vector<ScoreExpression> derivatives_of(const AttentionBackwardStructure& s) {
  std::vector<ScoreExpression> list{s.d_dot};
  for (const problem::LoadGradient& g : s.load_gradients) list.push_back(g.derivative);
  return list;
}

bool reads_dot(const ScoreExpression& e) {
  return std::any_of(e.nodes.begin(), e.nodes.end(), [](const problem::ScoreNode& node) {
    return node.op == problem::ScoreOp::dot;
  });
}

template <class Real>
class BackwardPlan final : public Plan {
 public:
  BackwardPlan(const AttentionBackwardProblem& p, const AllowedPaths& allowed)
      : structure_(p.structure),
        sizes_(p.sizes),
        allowed_(allowed),
        binding_(p.structure.forward, p.sizes, derivatives_of(p.structure)),
        isa_(active_isa().isa),
        kernels_(attention_kernels_of<Real>(isa_)),
        workers_(worker_count()),
        q_rope_(p.structure.forward.q_rope, rotated_queries(p.structure.forward, p.sizes),
                p.structure.forward),
        k_rope_(p.structure.forward.k_rope, rotated_keys(p.structure.forward, p.sizes),
                p.structure.forward),
        d_q_rope_(p.structure.d_q_rope,
                  {p.structure.d_q, p.sizes.batch, p.sizes.q_heads, p.sizes.q_length,
                   p.structure.forward.qk_head_dim, p.d_q_rope_scale, true, true},
                  p.structure.forward),
        d_k_rope_(p.structure.d_k_rope,
                  {p.structure.d_k, p.sizes.batch, p.sizes.k_heads, p.sizes.kv_length,
                   p.structure.forward.qk_head_dim, p.d_k_rope_scale, true, false},
                  p.structure.forward) {
    shape_ = pass_of(kernels_.shape);
    cut_keys();
    for (const KernelShape& shape : attention_shapes<Real>())
      workspace_bytes_ = std::max(workspace_bytes_, most_bytes(shape));
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    AttentionBinding::Result bound;
    HEDDLE_TRY(binding_.bind(buffers, cursor, bound));
    const auto view = [&](problem::OperandId id) {
      return id == kAbsent ? nullptr : &bound.views[id];
    };
    BackwardPass<Real> pass = shape_;
    pass.a = bound.arguments;
    pass.d_o = view(structure_.d_o), pass.d_stats = view(structure_.d_stats),
    pass.d_sink = view(structure_.d_sink);
    pass.d_q = view(structure_.d_q), pass.d_k = view(structure_.d_k),
    pass.d_v = view(structure_.d_v);
    pass.d_dot = bound.derivatives[0];
    Memory memory;
    carve(cursor, bound.views, pass.chunks * blocks_of_heads(pass), kernels_.shape, pass, memory);
    const Workers workers{workers_, cursor.take<char>(0), workspace_bytes_ - cursor.used()};
    rotate(pass, memory, workers);
    sum_rows(pass, workers);
    if (pass.d_q || pass.d_k || pass.d_v) differentiate(pass, workers);
    for (size_t n = 0; n < structure_.load_gradients.size(); ++n) {
      const LoadGradientPass load{view(structure_.load_gradients[n].gradient),
                                  bound.derivatives[1 + n]};
      differentiate_load(pass, load, workers);
    }
    if (pass.a.dropout.dump) dump_dropout(pass.a, kernels_, workers);
    return {};
  }

  std::string description() const override {
    return fmt::format("flash attention backward, {}{}, {} workers, tiles of {} rows x {} keys{}",
                       name(isa_), words_of(shape_.products), workers_,
                       kernels_.shape.backward_rows, kernels_.shape.backward_keys,
                       shape_.chunks > 1 ? fmt::format(", keys in {} parts", shape_.chunks) : "");
  }

 private:
  struct Memory {
    RopePass<Real> q_rope, k_rope, d_q_rope, d_k_rope;
    View rotated_q, rotated_k, unused;
  };

  /// What of a pass does not depend on how its keys are cut.
  BackwardPass<Real> pass_of(const KernelShape& shape) const {
    const problem::AttentionStructure& s = structure_.forward;
    const int64_t per_k = sizes_.q_heads / sizes_.k_heads, per_v = sizes_.q_heads / sizes_.v_heads;
    BackwardPass<Real> pass{};
    AttentionArguments& a = pass.a;
    a.batch = sizes_.batch, a.q_heads = sizes_.q_heads, a.q_length = sizes_.q_length,
    a.kv_length = sizes_.kv_length;
    a.qk_dim = s.qk_head_dim, a.v_dim = s.v_head_dim;
    pass.group = std::max<int64_t>(1, std::gcd(per_k, per_v));
    pass.heads = std::max<int64_t>(1, std::lcm(per_k, per_v));
    const AttentionPath path = forward_path(s, sizes_, shape, allowed_);
    pass.has_few_rows = path != AttentionPath::flash;
    pass.products = products_of(s, shape, path);
    // Parts hold a dO of the operands' type: of a longer one they would leave dP - D of a row that
    // sees one key, which is 0, what they cut off.
    if (s.type(structure_.d_o).dtype != s.type(s.q).dtype) pass.products = Products::singles;
    const auto steps = [](const ScoreExpression& e) {
      return static_cast<int32_t>(e.nodes.size());
    };
    pass.longest_score = steps(s.score);
    for (const ScoreExpression& e : derivatives_of(structure_)) {
      pass.keeps_dots |= reads_dot(e);
      pass.longest_score = std::max(pass.longest_score, steps(e));
    }
    pass.sums_loads = !structure_.load_gradients.empty();
    pass.scratch = backward_scratch(pass, shape, pass.products);
    pass.load_scratch = backward_scratch(pass, shape, Products::singles);
    return pass;
  }

  /// Whether it is known what dL/d(dot) of a row's keys adds up to: where the dot is the score but
  /// for what is added to it.
  bool knows_sums_of_rows() const {
    return structure_.whole_rows && structure_.d_q != kAbsent &&
           structure_.d_dot.nodes[structure_.d_dot.root].op == problem::ScoreOp::gradient;
  }

  /// Whether a load has one number for all keys of a row, whose gradient sums all of dS.
  bool settles_rows() const {
    const auto is_of_rows = [&](const problem::LoadGradient& load) {
      return sizes_.layouts[static_cast<size_t>(load.gradient)].dims[3] == 1;
    };
    return structure_.whole_rows && std::any_of(structure_.load_gradients.begin(),
                                                structure_.load_gradients.end(), is_of_rows);
  }

  /// Tasks of one part of the keys.
  static int64_t blocks_of_heads(const BackwardPass<Real>& pass) {
    return std::max<int64_t>(1, pass.a.batch * (pass.a.q_heads / pass.heads));
  }
  int64_t key_blocks(const KernelShape& shape) const {
    return std::max<int64_t>(1, divide_up(sizes_.kv_length, shape.backward_keys));
  }

  /// As few parts of the keys as keep all workers busy: each costs a dQ sum of its own.
  void cut_keys() {
    const KernelShape& shape = kernels_.shape;
    const int64_t blocks = key_blocks(shape), heads = blocks_of_heads(shape_);
    const int64_t most =
        std::min({blocks, most_tasks(shape_, shape) / heads, int64_t{2} * workers_});
    int64_t best = 1;
    double best_time = 0;
    for (int64_t n = 1; n <= most; ++n) {
      const double time =
          static_cast<double>(divide_up(heads * n, workers_)) / static_cast<double>(n);
      if (best_time == 0 || time < 0.95 * best_time) best = n, best_time = time;
    }
    shape_.chunk_keys = divide_up(blocks, best) * shape.backward_keys;
    shape_.chunks = std::max<int64_t>(1, divide_up(sizes_.kv_length, shape_.chunk_keys));
  }

  /// Takes what the pass needs beside its workers' scratch, with a dQ sum of its heads for each of
  /// so many tasks. Views are null when only measuring.
  void carve(WorkspaceCursor& cursor, const View* views, int64_t tasks, const KernelShape& shape,
             BackwardPass<Real>& pass, Memory& memory) const {
    pass.row_dot = cursor.take<Real>(sizes_.batch * sizes_.q_heads * sizes_.q_length);
    pass.one_key_rest = cursor.take<Real>(sizes_.batch * sizes_.q_heads * sizes_.q_length);
    if (structure_.d_q != kAbsent) {
      pass.d_q_sum =
          cursor.take<Real>(tasks * pass.heads * sizes_.q_length * pass.scratch.q_columns);
    }
    if (knows_sums_of_rows()) {
      pass.d_s_sum = cursor.take<Real>(tasks * pass.heads * sizes_.q_length);
      if (structure_.forward.sink != kAbsent)
        pass.weight_sum = cursor.take<Real>(tasks * pass.heads * sizes_.q_length);
      pass.mean_key =
          cursor.take<Real>(tasks * pass.heads * divide_up(sizes_.q_length, shape.backward_rows) *
                            pass.mean_key_pitch());
    }
    if (settles_rows())
      pass.d_s_rest = cursor.take<Real>(sizes_.batch * sizes_.q_heads * sizes_.q_length);
    if (q_rope_.is_present()) memory.q_rope = q_rope_.bind(cursor, views, true, memory.rotated_q);
    if (k_rope_.is_present()) memory.k_rope = k_rope_.bind(cursor, views, true, memory.rotated_k);
    if (d_q_rope_.is_present())
      memory.d_q_rope = d_q_rope_.bind(cursor, views, false, memory.unused);
    if (d_k_rope_.is_present())
      memory.d_k_rope = d_k_rope_.bind(cursor, views, false, memory.unused);
  }

  /// Tasks that a machine cuts the heads and keys into at most; more with every size.
  int64_t most_tasks(const BackwardPass<Real>& pass, const KernelShape& shape) const {
    const int64_t heads = blocks_of_heads(pass);
    return std::min(heads * std::min(key_blocks(shape), kMostChunks), std::max(heads, kMostTasks));
  }

  int64_t load_tasks(const problem::LoadGradient& load, const KernelShape& shape) const {
    const Dims& dims = sizes_.layouts[static_cast<size_t>(load.gradient)].dims;
    return dims[0] * dims[1] * divide_up(dims[2], shape.backward_rows) *
           divide_up(dims[3], shape.backward_keys);
  }

  /// Room for the pass on any machine whose instruction set has this shape.
  int64_t most_bytes(const KernelShape& shape) const {
    BackwardPass<Real> pass = pass_of(shape);
    const int64_t tasks = most_tasks(pass, shape);
    WorkspaceCursor cursor(nullptr);
    binding_.measure(cursor);
    Memory memory;
    carve(cursor, nullptr, tasks, shape, pass, memory);
    const auto workers = [](int64_t n) { return std::min<int64_t>(n, kMostWorkers); };
    int64_t scratch = workers(tasks) * pass.scratch.bytes;
    for (const problem::LoadGradient& load : structure_.load_gradients)
      scratch = std::max(scratch, workers(load_tasks(load, shape)) * pass.load_scratch.bytes);
    return cursor.used() + scratch;
  }

  void rotate(BackwardPass<Real>& pass, const Memory& memory, const Workers& workers) const {
    const auto run = [&](const RopePass<Real>& rope, bool rotates) {
      RopeStage<Real>::run(rope, pass.a.batch, rotates, kernels_, workers);
    };
    if (q_rope_.is_present()) run(memory.q_rope, true), pass.a.q = memory.q_rope.out;
    if (k_rope_.is_present()) run(memory.k_rope, true), pass.a.k = memory.k_rope.out;
    if (d_q_rope_.is_present()) run(memory.d_q_rope, false), pass.d_q_rope = &memory.d_q_rope;
    if (d_k_rope_.is_present()) run(memory.d_k_rope, false), pass.d_k_rope = &memory.d_k_rope;
  }

  /// Scratch: two rows in whole vectors.
  template <class Body>
  void for_query_rows(const BackwardPass<Real>& pass, const Workers& workers,
                      const Body& body) const {
    const int64_t tiles = divide_up(pass.a.q_length, kRowsPerTask);
    const int64_t columns = std::max(pass.scratch.q_columns, pass.scratch.o_columns);
    const int64_t row_bytes = round_up(2 * columns * int64_t{sizeof(Real)}, 64);
    for_each_task(pass.a.batch * pass.a.q_heads * tiles, workers, row_bytes,
                  [&](int64_t task, char* scratch) {
                    const int64_t head = task / tiles, first = task % tiles * kRowsPerTask;
                    body(pass, head / pass.a.q_heads, head % pass.a.q_heads, first,
                         std::min(pass.a.q_length, first + kRowsPerTask), scratch);
                  });
  }

  void sum_rows(const BackwardPass<Real>& pass, const Workers& workers) const {
    for_query_rows(pass, workers, kernels_.row_dots);
    if (!pass.d_sink) return;
    for_each_task(pass.a.q_heads, workers_,
                  [&](int64_t h, int) { kernels_.sink_gradient(pass, h); });
  }

  void differentiate(const BackwardPass<Real>& pass, const Workers& workers) const {
    const int64_t blocks = pass.a.q_heads / pass.heads;
    for_each_task(pass.chunks * pass.a.batch * blocks, workers, pass.scratch.bytes,
                  [&](int64_t task, char* scratch) {
                    const int64_t b = task / blocks % pass.a.batch;
                    kernels_.backward(pass,
                                      {b, task % blocks * pass.heads, task / blocks / pass.a.batch},
                                      scratch);
                  });
    if (pass.d_q) for_query_rows(pass, workers, kernels_.query_gradients);
  }

  void differentiate_load(const BackwardPass<Real>& pass, const LoadGradientPass& load,
                          const Workers& workers) const {
    const int64_t rows = kernels_.shape.backward_rows, keys = kernels_.shape.backward_keys;
    const int64_t* dims = load.gradient->dims;
    const int64_t row_tiles = divide_up(dims[2], rows), key_tiles = divide_up(dims[3], keys);
    for_each_task(dims[0] * dims[1] * row_tiles * key_tiles, workers, pass.load_scratch.bytes,
                  [&](int64_t task, char* scratch) {
                    const LoadGradientTask tile{task / key_tiles / row_tiles / dims[1],
                                                task / key_tiles / row_tiles % dims[1],
                                                task / key_tiles % row_tiles * rows,
                                                task % key_tiles * keys};
                    kernels_.load_gradient(pass, load, tile, scratch);
                  });
  }

  AttentionBackwardStructure structure_;
  AttentionSizes sizes_;
  AllowedPaths allowed_;
  AttentionBinding binding_;
  Isa isa_;
  const AttentionKernels<Real>& kernels_;
  int workers_;
  RopeStage<Real> q_rope_, k_rope_, d_q_rope_, d_k_rope_;
  BackwardPass<Real> shape_{};
  int64_t workspace_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Plan>> plan_backward(const AttentionBackwardProblem& problem,
                                                  const AllowedPaths& allowed) {
  HEDDLE_TRY(check(problem));
  if (is_f64(problem.structure.forward))
    return std::shared_ptr<const Plan>(std::make_shared<BackwardPlan<double>>(problem, allowed));
  return std::shared_ptr<const Plan>(std::make_shared<BackwardPlan<float>>(problem, allowed));
}

}  // namespace heddle::engine::cpu
