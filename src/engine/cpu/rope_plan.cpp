#include "engine/cpu/rope_plan.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/rope_wide.h"

namespace heddle::engine::cpu {

using problem::kAbsent;
using problem::OperandId;
using problem::RopeProblem;

namespace {

constexpr int64_t kRowsPerTask = 64;

class RopePlan final : public Plan {
 public:
  explicit RopePlan(const RopeProblem& problem)
      : problem_(problem), isa_(active_isa().isa), workers_(worker_count()) {}

  Status check() const;

  int64_t workspace_bytes() const override {
    if (*element_count(x().dims) == 0) return 0;
    WorkspaceCursor cursor(nullptr);
    carve(cursor);
    return cursor.used();
  }
  Status execute(std::span<void* const> buffers, void* workspace, void*) const override;
  std::string description() const override {
    return fmt::format("rope{}, {}, {}", problem_.structure.inverse ? " backward" : "",
                       is_wide() ? std::string_view("f64") : name(isa_), to_string(x().dims));
  }

 private:
  struct Memory {
    View *views, *lengths;
    int64_t* length_values;
    float* table;
    Workers workers;
  };
  const problem::OperandLayout& layout(OperandId id) const { return problem_.sizes.layout(id); }
  const problem::OperandType& type(OperandId id) const { return problem_.structure.type(id); }
  const problem::OperandLayout& x() const { return layout(problem_.structure.x); }
  bool is_wide() const {
    return type(problem_.structure.x).dtype == DataType::f64 ||
           type(problem_.structure.y).dtype == DataType::f64;
  }
  bool is_ragged() const {
    return type(problem_.structure.x).storage.is_ragged() ||
           type(problem_.structure.y).storage.is_ragged();
  }
  int64_t table_batches() const {
    return problem_.structure.rope.positions != kAbsent ? x().dims[0] : 1;
  }
  int64_t tiles() const { return divide_up(x().dims[2], kRowsPerTask); }
  int64_t scratch_bytes() const {
    return round_up(x().dims[3], 16) * static_cast<int64_t>(sizeof(float));
  }
  Memory carve(WorkspaceCursor& cursor) const;
  Status bind(std::span<void* const> buffers, const Memory& memory, RopePass<float>& pass) const;
  void measure_sequences(const Memory& memory, RopePass<float>& pass) const;

  RopeProblem problem_;
  Isa isa_;
  int workers_;
};

Status RopePlan::check() const {
  const problem::RopeStructure& p = problem_.structure;
  if (x().dims[3] > (int64_t{1} << 31)) {
    return error(Code::graph_not_supported,
                 "rope: x has dims {}, but the CPU engine takes rows of up to 2^31 elements",
                 to_string(x().dims));
  }
  for (const auto& [label, id] : {std::pair{"x", p.x},
                                  {"y", p.y},
                                  {"cosines", p.rope.cosines},
                                  {"sines", p.rope.sines},
                                  {"angles", p.rope.angles}}) {
    if (id == kAbsent) continue;
    const DataType dtype = type(id).dtype;
    if (dtype != DataType::f64 && dtype != DataType::f32 && dtype != DataType::bf16 &&
        dtype != DataType::f16) {
      return error(Code::graph_not_supported,
                   "rope: {} is {}, but the CPU engine takes f64, f32, bf16 and f16", label,
                   name(dtype));
    }
  }
  for (OperandId id : {p.x, p.y}) {
    if (type(id).storage.is_paged())
      return error(Code::graph_not_supported, "rope: the CPU engine does not rotate paged tensors");
  }
  return {};
}

RopePlan::Memory RopePlan::carve(WorkspaceCursor& cursor) const {
  Memory memory{};
  memory.views = cursor.take<View>(static_cast<int64_t>(problem_.structure.operands.size()));
  if (is_ragged()) {
    memory.lengths = cursor.take<View>(1);
    memory.length_values = cursor.take<int64_t>(x().dims[0]);
  }
  if (!is_wide())
    memory.table =
        cursor.take<float>(table_batches() * x().dims[2] * problem_.structure.rope.rope_dim);
  const int64_t bytes = std::min<int64_t>(x().dims[0] * tiles(), kMostWorkers) * scratch_bytes();
  memory.workers = {workers_, cursor.take<char>(bytes), bytes};
  return memory;
}

Status RopePlan::bind(std::span<void* const> buffers, const Memory& memory,
                      RopePass<float>& pass) const {
  const problem::RopeStructure& p = problem_.structure;
  if (buffers.size() != p.operands.size()) {
    return error(Code::invalid_variant_pack, "rope: {} buffers were given for {} operands",
                 buffers.size(), p.operands.size());
  }
  for (size_t n = 0; n < buffers.size(); ++n) {
    const auto id = static_cast<OperandId>(n);
    View& v = memory.views[n];
    v = dense_view(buffers[n], type(id).dtype, layout(id).dims);
    for (int d = 0; d < 4; ++d) v.stride[d] = v.dims[d] == 1 ? 0 : layout(id).strides[d];
    v.ragged_multiplier = layout(id).ragged_multiplier;
    if (type(id).storage.is_ragged()) v.ragged = &memory.views[type(id).storage.index];
    if (!v.data) {
      return error(Code::invalid_variant_pack, "rope: operand {} with dims {} has no buffer", n,
                   to_string(layout(id).dims));
    }
    if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(v.element_bytes) != 0) {
      return error(Code::invalid_variant_pack,
                   "rope: the buffer of operand {} is not aligned to its {} elements", n,
                   name(type(id).dtype));
    }
  }
  const auto view = [&](OperandId id) { return id == kAbsent ? nullptr : &memory.views[id]; };
  pass.angles = view(p.rope.angles);
  pass.cosines = view(p.rope.cosines), pass.sines = view(p.rope.sines);
  pass.positions = view(p.rope.positions);
  pass.per_row = p.rope.positions_per_row;
  pass.interleaved = p.rope.pairing == problem::Rope::Pairing::interleaved;
  pass.inverse = p.inverse;
  pass.rope_dim = p.rope.rope_dim, pass.first_column = p.rope.first_column;
  pass.length = x().dims[2];
  pass.table_batches = table_batches();
  pass.scale = static_cast<float>(problem_.sizes.scale);
  pass.table = memory.table;
  pass.in = view(p.x), pass.out = view(p.y);
  pass.heads = x().dims[1], pass.columns = x().dims[3];
  return {};
}

/// A ragged sequence's rows: as many as lie before the next sequence, in x and in y.
void RopePlan::measure_sequences(const Memory& memory, RopePass<float>& pass) const {
  for (int64_t b = 0; b < x().dims[0]; ++b) {
    int64_t length = pass.length;
    for (const View* v : {pass.in, pass.out}) {
      if (!v->ragged || v->stride[2] == 0) continue;
      const auto offset = [&](int64_t n) {
        return static_cast<int64_t>(load(static_cast<DataType>(v->ragged->element), v->ragged->data,
                                         n * v->ragged->stride[0]));
      };
      length = std::min(length, (offset(b + 1) - offset(b)) * v->ragged_multiplier / v->stride[2]);
    }
    memory.length_values[b] = std::max<int64_t>(length, 0);
  }
  *memory.lengths = dense_view(memory.length_values, DataType::i64, {x().dims[0], 1, 1, 1});
  pass.lengths = memory.lengths;
}

Status RopePlan::execute(std::span<void* const> buffers, void* workspace, void*) const {
  const Dims& dims = x().dims;
  if (*element_count(dims) == 0) return {};
  HEDDLE_TRY(check_workspace(workspace));
  WorkspaceCursor cursor(workspace);
  const Memory memory = carve(cursor);
  RopePass<float> pass{};
  HEDDLE_TRY(bind(buffers, memory, pass));
  if (is_ragged()) measure_sequences(memory, pass);
  const AttentionKernels<float>& kernels = attention_kernels_of<float>(isa_);
  if (!is_wide()) {
    const int64_t rows = pass.table_batches * pass.length;
    for_each_task(divide_up(rows, kRowsPerTask), workers_, [&](int64_t task, int) {
      kernels.rope_table(pass, task * kRowsPerTask, std::min(rows, (task + 1) * kRowsPerTask));
    });
  }
  for_each_task(dims[0] * tiles(), memory.workers, scratch_bytes(), [&](int64_t task, char* row) {
    const int64_t b = task / tiles(), first = task % tiles() * kRowsPerTask;
    const int64_t end = pass.lengths ? memory.length_values[b] : pass.length;
    const int64_t last = std::min(end, first + kRowsPerTask);
    if (is_wide()) {
      rope_rows_wide(pass, problem_.sizes.scale, b, first, last);
    } else {
      kernels.rope_rows(pass, b, first, last, reinterpret_cast<float*>(row));
    }
  });
  return {};
}

}  // namespace

Result<std::shared_ptr<const Plan>> plan_rope(const RopeProblem& problem) {
  auto plan = std::make_shared<RopePlan>(problem);
  HEDDLE_TRY(plan->check());
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace heddle::engine::cpu
