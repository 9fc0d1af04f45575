#include "engine/cpu/fp8_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rounding.h"
#include "engine/cpu/attention_binding.h"
#include "engine/cpu/attention_check.h"
#include "engine/cpu/fp8_kernels.h"
#include "engine/cpu/parallel.h"

namespace heddle::engine::cpu {

using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::Fp8AttentionBackwardProblem;
using problem::Fp8AttentionBackwardStructure;
using problem::Fp8AttentionProblem;
using problem::kAbsent;
using problem::OperandId;

namespace {

/// A problem's memory as its passes are given it.
class Memory {
 public:
  explicit Memory(const View* views) : views_(views) {}

  const View* view(OperandId id) const { return id == kAbsent ? nullptr : &views_[id]; }
  /// A scale; 1 of one that is absent.
  float number(OperandId id) const {
    return id == kAbsent ? 1 : *reinterpret_cast<const float*>(views_[id].data);
  }
  /// Begins at 0. An f32's bits, which workers raise.
  uint32_t* amax(OperandId id) const {
    if (id == kAbsent) return nullptr;
    auto* const bits = reinterpret_cast<uint32_t*>(views_[id].data);
    *bits = 0;
    return bits;
  }

 private:
  const View* views_;
};

/// What both passes have: the views, and scratch for as many workers as there are tasks.
class Fp8Plan : public Plan {
 public:
  Fp8Plan(const AttentionStructure& s, const AttentionSizes& z, const char* op)
      : binding_(s, z),
        q_tiles_(divide_up(z.q_length, kFp8Rows)),
        key_tiles_(divide_up(z.kv_length, kFp8Keys)),
        batch_(z.batch),
        scratch_bytes_(fp8_scratch(s.qk_head_dim, s.v_head_dim).bytes),
        isa_(active_isa().isa),
        workers_(worker_count()),
        description_(fmt::format("{}, {}, {} rows x {} keys a tile, d {}/{}", op, cpu::name(isa_),
                                 kFp8Rows, kFp8Keys, s.qk_head_dim, s.v_head_dim)) {
    const int64_t tasks =
        z.batch * std::max({z.q_heads * q_tiles_, z.k_heads * key_tiles_, z.v_heads * key_tiles_});
    scratch_workers_ = std::clamp<int64_t>(tasks, 1, kMostWorkers);
  }

  int64_t workspace_bytes() const override {
    WorkspaceCursor cursor(nullptr);
    binding_.measure(cursor);
    return cursor.used() + scratch_workers_ * scratch_bytes_;
  }
  std::string description() const override { return description_; }

 protected:
  Status bind(std::span<void* const> buffers, void* workspace, AttentionBinding::Result& bound,
              Workers& workers) const {
    HEDDLE_TRY(check_workspace(workspace));
    WorkspaceCursor cursor(workspace);
    HEDDLE_TRY(binding_.bind(buffers, cursor, bound));
    const int64_t bytes = scratch_workers_ * scratch_bytes_;
    workers = {workers_, cursor.take<char>(bytes), bytes};
    return {};
  }
  template <class Run>
  void for_each_tile(const Workers& workers, int64_t heads, bool of_keys, Run&& run) const {
    const int64_t tiles = of_keys ? key_tiles_ : q_tiles_, rows = of_keys ? kFp8Keys : kFp8Rows;
    for_each_task(batch_ * heads * tiles, workers, scratch_bytes_,
                  [&](int64_t task, char* scratch) {
                    const int64_t head = task / tiles;
                    run(Fp8Task{head / heads, head % heads, task % tiles * rows}, scratch);
                  });
  }
  const Fp8Kernels& kernels() const { return fp8_kernels_of(isa_); }

 private:
  AttentionBinding binding_;
  int64_t q_tiles_, key_tiles_, batch_, scratch_bytes_, scratch_workers_ = 1;
  Isa isa_;
  int workers_;
  std::string description_;
};

class Fp8ForwardPlan final : public Fp8Plan {
 public:
  explicit Fp8ForwardPlan(const Fp8AttentionProblem& p)
      : Fp8Plan(p.structure.attention, p.sizes, "fp8 attention"), s_(p.structure) {}

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    AttentionBinding::Result bound;
    Workers workers{};
    HEDDLE_TRY(bind(buffers, workspace, bound, workers));
    const Memory memory(bound.views);
    Fp8Pass pass{};
    pass.a = bound.arguments;
    pass.score_scale = static_cast<float>(pass.a.scale * memory.number(s_.descale_q) *
                                          memory.number(s_.descale_k));
    pass.p = {s_.scale_s != kAbsent, pass.a.q->element, memory.number(s_.scale_s),
              memory.amax(s_.amax_s)};
    pass.o = {pass.a.o, memory.number(s_.descale_s) * memory.number(s_.descale_v),
              memory.number(s_.scale_o), memory.amax(s_.amax_o)};
    for_each_tile(workers, pass.a.q_heads, false, [&](const Fp8Task& task, void* scratch) {
      kernels().forward(pass, task, scratch);
    });
    return {};
  }

 private:
  problem::Fp8AttentionStructure s_;
};

class Fp8BackwardPlan final : public Fp8Plan {
 public:
  explicit Fp8BackwardPlan(const Fp8AttentionBackwardProblem& p)
      : Fp8Plan(p.structure.attention.forward, p.sizes, "fp8 attention backward"),
        s_(p.structure) {}

  Status execute(std::span<void* const> buffers, void* workspace, void*) const override {
    AttentionBinding::Result bound;
    Workers workers{};
    HEDDLE_TRY(bind(buffers, workspace, bound, workers));
    const Fp8BackwardPass pass = pass_of(bound.arguments, Memory(bound.views));
    if (pass.d_q.view || pass.d_s.amax) {
      for_each_tile(workers, pass.a.q_heads, false, [&](const Fp8Task& task, void* scratch) {
        kernels().query_gradient(pass, task, scratch);
      });
    }
    if (pass.d_k.view) {
      for_each_tile(workers, pass.a.k_heads, true, [&](const Fp8Task& task, void* scratch) {
        kernels().key_gradient(pass, task, scratch);
      });
    }
    if (pass.d_v.view) {
      for_each_tile(workers, pass.a.v_heads, true, [&](const Fp8Task& task, void* scratch) {
        kernels().value_gradient(pass, task, scratch);
      });
    }
    return {};
  }

 private:
  Fp8BackwardPass pass_of(const AttentionArguments& a, const Memory& memory) const {
    const problem::AttentionBackwardStructure& b = s_.attention;
    const auto number = [&](OperandId id) { return memory.number(id); };
    Fp8BackwardPass pass{};
    pass.a = a;
    pass.d_o = memory.view(b.d_o);
    pass.attn_scale = static_cast<float>(a.scale);
    pass.score_scale = static_cast<float>(a.scale * number(s_.descale_q) * number(s_.descale_k));
    pass.d_p_descale = number(s_.descale_d_o) * number(s_.descale_v);
    pass.d_descale = number(s_.descale_d_o) * number(s_.descale_o);
    pass.p = {true, a.q->element, number(s_.scale_s), nullptr};
    pass.d_s = {true, pass.d_o->element, number(s_.scale_d_p), memory.amax(s_.amax_d_p)};
    const float of_d_s = number(s_.descale_d_p);
    pass.d_q = {memory.view(b.d_q), of_d_s * number(s_.descale_k), number(s_.scale_d_q),
                memory.amax(s_.amax_d_q)};
    pass.d_k = {memory.view(b.d_k), of_d_s * number(s_.descale_q), number(s_.scale_d_k),
                memory.amax(s_.amax_d_k)};
    pass.d_v = {memory.view(b.d_v), number(s_.descale_s) * number(s_.descale_d_o),
                number(s_.scale_d_v), memory.amax(s_.amax_d_v)};
    return pass;
  }

  Fp8AttentionBackwardStructure s_;
};

}  // namespace

Result<std::shared_ptr<const Plan>> plan_fp8_forward(const Fp8AttentionProblem& problem) {
  HEDDLE_TRY(check_extents(problem.structure.attention, problem.sizes));
  return std::shared_ptr<const Plan>(std::make_shared<Fp8ForwardPlan>(problem));
}

Result<std::shared_ptr<const Plan>> plan_fp8_backward(const Fp8AttentionBackwardProblem& problem) {
  HEDDLE_TRY(check_extents(problem.structure.attention.forward, problem.sizes));
  return std::shared_ptr<const Plan>(std::make_shared<Fp8BackwardPlan>(problem));
}

}  // namespace heddle::engine::cpu
