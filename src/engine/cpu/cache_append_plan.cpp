#include "engine/cpu/cache_append_plan.h"

#include <algorithm>
#include <cstring>

#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/parallel.h"
#include "problem/operands.h"

namespace heddle::engine::cpu {

using problem::CacheAppendProblem;
using problem::CacheAppendSizes;
using problem::CacheAppendStructure;
using problem::kAbsent;
using problem::OperandId;

namespace {

/// Heads of a task where tokens alone are too few to keep the workers busy, as in decoding.
constexpr int64_t kHeadsPerTask = 4;

/// Up to so many elements one worker moves them all in the time that others take to begin.
constexpr int64_t kElementsOfOne = 8192;

constexpr std::string_view kOp = "cache_append";

Status check_types(const CacheAppendStructure& s) {
  Status status;
  const auto visit = [&](const char* label, OperandId id, problem::Use) {
    if (!status.is_ok() || id == kAbsent || s.type(id).holds_codes()) return;
    const DataType type = s.type(id).dtype;
    if (type == DataType::f32 || type == DataType::bf16 || type == DataType::f16) return;
    status =
        error(Code::graph_not_supported, "{}: {} is {}, but the CPU engine takes f32, bf16, f16",
              kOp, label, heddle::name(type));
  };
  problem::tensors(visit, s);
  for (const auto& [label, id] : {std::pair{"the norm weight of q", s.q_norm},
                                  {"the norm weight of k", s.k_norm},
                                  {"cosines", s.cosines},
                                  {"sines", s.sines}})
    visit(label, id, problem::Use::read);
  return status;
}

/// What one cache holds before the new rows: those of its past, zeros behind them.
void carry_over(const View* past, const View& cache, int64_t b, int64_t h, int64_t count) {
  const auto bytes = static_cast<size_t>(cache.dims[3] * cache.element_bytes);
  const auto row = [&](const View& v, int64_t r) {
    return v.data +
           (b * v.stride[0] + h * v.stride[1] + r * v.stride[2]) * int64_t{v.element_bytes};
  };
  const int64_t rows = cache.dims[2], copied = past ? std::min({count, past->dims[2], rows}) : 0;
  // A ring may have them anywhere.
  for (int64_t r = cache.ring ? 0 : copied; copied < rows && r < rows; ++r)
    std::memset(row(cache, r), 0, bytes);
  const int64_t first = cache.ring ? count - copied : 0;
  for (int64_t s = first; s < first + copied; ++s)
    std::memcpy(row(cache, s % rows), row(*past, s % past->dims[2]), bytes);
}

class CacheAppendPlan final : public Plan {
 public:
  explicit CacheAppendPlan(const CacheAppendProblem& problem)
      : problem_(problem), isa_(active_isa().isa), workers_(worker_count()) {}

  int64_t workspace_bytes() const override {
    WorkspaceCursor cursor(nullptr);
    carve(cursor);
    return cursor.used();
  }

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    if (z().batch == 0) return {};
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    const Memory memory = carve(cursor);
    HEDDLE_TRY(views_of(kOp, s(), z(), buffers, memory.views));
    HEDDLE_TRY(check_places(memory.views));
    count_rows(memory);
    fill_beside(memory);
    append(pass_of(memory), memory.workers);
    return {};
  }

  std::string description() const override {
    return fmt::format("cache append, {}, {} rows of {} + {} + {} heads", name(isa_), z().length,
                       z().q_heads, z().kv_heads, z().kv_heads);
  }

 private:
  struct Memory {
    View* views;
    View *packed_k, *packed_v;
    int64_t *past, *added;
    float *q_weight, *k_weight;
    Workers workers;
  };
  const CacheAppendStructure& s() const { return problem_.structure; }
  const CacheAppendSizes& z() const { return problem_.sizes; }
  int64_t heads() const { return z().q_heads + 2 * z().kv_heads; }
  int64_t scratch_bytes() const {
    return (round_up(std::max(s().qk_head_dim, s().v_head_dim), 16) + round_up(s().rope_dim, 16)) *
           int64_t{sizeof(float)};
  }

  Memory carve(WorkspaceCursor& cursor) const {
    Memory memory{};
    memory.views = cursor.take<View>(static_cast<int64_t>(s().operands.size()));
    memory.packed_k = cursor.take<View>(1);
    memory.packed_v = cursor.take<View>(1);
    memory.past = cursor.take<int64_t>(z().batch);
    memory.added = cursor.take<int64_t>(z().batch);
    memory.q_weight = cursor.take<float>(s().qk_head_dim);
    memory.k_weight = cursor.take<float>(s().qk_head_dim);
    const int64_t tasks = z().batch * z().length * divide_up(heads(), kHeadsPerTask);
    const int64_t bytes = std::min<int64_t>(tasks, kMostWorkers) * scratch_bytes();
    memory.workers = {workers_, cursor.take<char>(bytes), bytes};
    return memory;
  }

  bool is_one(const View* views, OperandId past, OperandId cache) const {
    return past != kAbsent && views[past].data == views[cache].data;
  }

  Status check_places(const View* views) const {
    for (const auto& [label, past, cache] :
         {std::tuple{"k", s().past_k, s().k_cache}, {"v", s().past_v, s().v_cache}}) {
      if (cache == kAbsent || !s().type(cache).storage.is_paged() || is_one(views, past, cache))
        continue;
      return error(Code::invalid_variant_pack,
                   "{}: the pages of {} and those of its past are two buffers, expected one", kOp,
                   label);
    }
    return {};
  }

  /// Rows before and new ones of each batch entry, and the lengths that attention takes.
  void count_rows(const Memory& memory) const {
    const View* const views = memory.views;
    const auto read = [&](OperandId id, int64_t b) {
      const View& v = views[id];
      const double length = load(static_cast<DataType>(v.element), v.data, b * v.stride[0]);
      return static_cast<int64_t>(std::clamp<double>(length, INT32_MIN, INT32_MAX));
    };
    const auto write = [&](OperandId id, int64_t b, int64_t length) {
      if (id == kAbsent) return;
      store(s().type(id).dtype, views[id].data, b * views[id].stride[0],
            static_cast<double>(length));
    };
    for (int64_t b = 0; b < z().batch; ++b) {
      const int64_t added = s().new_lengths == kAbsent
                                ? z().length
                                : std::clamp<int64_t>(read(s().new_lengths, b), 0, z().length);
      const int64_t total =
          s().total_lengths == kAbsent
              ? added
              : std::max<int64_t>(0, read(s().total_lengths, b) + z().total_offset);
      memory.added[b] = added;
      memory.past[b] = std::max<int64_t>(0, total - added);
      write(s().lengths_q, b, std::min(added, total));
      write(s().lengths_kv, b, std::min(total, z().capacity));
    }
  }

  /// The parts of caches that hold no new rows, unless these are put in where the past lies.
  void fill_beside(const Memory& memory) const {
    for (const auto& [past, cache] :
         {std::pair{s().past_k, s().k_cache}, {s().past_v, s().v_cache}}) {
      if (cache == kAbsent || is_one(memory.views, past, cache)) continue;
      const View* from = past == kAbsent ? nullptr : &memory.views[past];
      const View& to = memory.views[cache];
      for_each_task(z().batch * z().kv_heads, workers_, [&](int64_t task, int) {
        const int64_t b = task / z().kv_heads;
        carry_over(from, to, b, task % z().kv_heads, memory.past[b]);
      });
    }
  }

  CacheAppendPass pass_of(const Memory& memory) const {
    const auto view = [&](OperandId id) { return id == kAbsent ? nullptr : &memory.views[id]; };
    const auto weights = [&](OperandId id, float* out) -> const float* {
      if (id == kAbsent) return nullptr;
      const View& v = memory.views[id];
      for (int64_t d = 0; d < s().qk_head_dim; ++d)
        out[d] =
            static_cast<float>(load(static_cast<DataType>(v.element), v.data, d * v.stride[3]));
      return out;
    };
    CacheAppendPass pass{};
    pass.q = view(s().q), pass.k = view(s().k), pass.v = view(s().v);
    if (s().is_packed()) {
      const auto behind = [&](int64_t packed_heads) {
        View v = *pass.q;
        v.data += packed_heads * v.stride[1] * v.element_bytes;
        return v;
      };
      *memory.packed_k = behind(z().q_heads);
      *memory.packed_v = behind(z().q_heads + z().kv_heads);
      pass.k = memory.packed_k, pass.v = memory.packed_v;
    }
    pass.q_out = view(s().q_out), pass.k_cache = view(s().k_cache);
    pass.v_cache = view(s().v_cache);
    pass.cosines = view(s().cosines), pass.sines = view(s().sines);
    pass.positions = view(s().positions);
    pass.q_weight = weights(s().q_norm, memory.q_weight);
    pass.k_weight = weights(s().k_norm, memory.k_weight);
    pass.q_epsilon = z().q_epsilon, pass.k_epsilon = z().k_epsilon;
    pass.interleaved = s().pairing == problem::Rope::Pairing::interleaved;
    pass.q_heads = z().q_heads, pass.kv_heads = z().kv_heads;
    pass.rope_dim = s().rope_dim, pass.qk_dim = s().qk_head_dim, pass.v_dim = s().v_head_dim;
    pass.past = memory.past, pass.added = memory.added;
    return pass;
  }

  void append(const CacheAppendPass& pass, Workers workers) const {
    const int64_t tokens = z().batch * z().length;
    if (tokens * heads() * pass.qk_dim <= kElementsOfOne) workers.count = 1;
    const int64_t step = tokens >= 4 * workers.count ? heads() : kHeadsPerTask;
    const int64_t parts = divide_up(heads(), step);
    const Kernels& kernels = kernels_of(isa_);
    for_each_task(tokens * parts, workers, scratch_bytes(), [&](int64_t task, char* scratch) {
      const int64_t token = task / parts, first = task % parts * step;
      kernels.append_row(pass, token / z().length, token % z().length, first,
                         std::min(first + step, heads()), reinterpret_cast<float*>(scratch));
    });
  }

  CacheAppendProblem problem_;
  Isa isa_;
  int workers_;
};

}  // namespace

Result<std::shared_ptr<const Plan>> plan_cache_append(const CacheAppendProblem& problem) {
  HEDDLE_TRY(check_types(problem.structure));
  return std::shared_ptr<const Plan>(std::make_shared<CacheAppendPlan>(problem));
}

}  // namespace heddle::engine::cpu
