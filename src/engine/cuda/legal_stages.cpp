#include "engine/cuda/legal_stages.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_decode.h"
#include "engine/cuda/launch_operands.h"
#include "engine/cuda/stages_builder.h"
#include "engine/cuda/tensor_map.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionFacts;
using problem::AttentionProblem;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

/// Whether there are queries, and copies of rows cost less than what kernels gain by them.
/// Reckoned, not measured: of a row of K they take 8 bytes a column at 3 TB/s, as much time as a
/// tenth of the products with some hundred query rows that read it by elements.
bool pay(const AttentionFacts& facts, OperandId q) {
  return !facts.operand(q).is_empty && facts.keys != AttentionFacts::Keys::to_255 &&
         !facts.has_few_rows;
}
/// A few rows against many keys, too: the decode kernel has all processors read them.
bool pay_in_forward(const AttentionProblem& problem, const AttentionFacts& facts) {
  const OperandId q = problem.structure.q;
  return pay(facts, q) || (!facts.operand(q).is_empty && has_few_rows_and_many_keys(problem));
}

/// Elements in memory: what is broadcast lies there once.
double elements_of(const problem::OperandLayout& layout) {
  double count = 1;
  for (int d = 0; d < layout.dims.rank(); ++d)
    if (layout.strides[d] != 0) count *= static_cast<double>(layout.dims_to_plan_for()[d]);
  return count;
}
double elements_of(const Dims& dims) {
  double count = 1;
  for (int64_t dim : dims) count *= static_cast<double>(dim);
  return count;
}
/// How many times the memory that the tensors take may be taken by copies of their rows: keys that
/// many batch entries share, for a few queries each, are read where they lie.
constexpr double kMostOfCopies = 4;

/// A tensor of the problem, and where its structure names it.
struct Place {
  const char* name;
  OperandId* id;
  int32_t head_dim;
  const SideLengths* lengths;  ///< of its rows
};

class Legalisation {
 public:
  /// `read` are operands of products, `written` their results.
  Legalisation(AttentionStructure& structure, problem::AttentionSizes& sizes,
               const AttentionFacts& facts, Rows rows, std::vector<Place> read,
               std::vector<Place> written)
      : structure_(structure),
        sizes_(sizes),
        facts_(facts),
        rows_(are_apart() ? Rows::as_they_lie : rows),
        read_(std::move(read)),
        written_(std::move(written)),
        build_(structure, sizes) {
    const auto absent = [](const Place& place) { return *place.id == kAbsent; };
    std::erase_if(written_, absent);
    computed_ = type_of(read_.front());
    for (const Place& place : read_)
      if (!holds_codes(place) && type_of(place) != computed_) computed_ = DataType::f32;
    result_ = computed_;
    for (const Place& place : written_)
      if (type_of(place) != computed_) result_ = DataType::f32;
    double given = 0, copied = 0;
    const auto count = [&](const Place& place, DataType type) {
      const problem::OperandLayout& layout = sizes.layout(*place.id);
      given += elements_of(layout);
      if (is_copied(place, type)) copied += elements_of(layout.dims_to_plan_for());
    };
    for (const Place& place : read_) count(place, computed_);
    for (const Place& place : written_) count(place, result_);
    if (copied > kMostOfCopies * given) rows_ = Rows::as_they_lie;
  }

  /// Whether all that is to be copied is of types that copies take.
  bool is_of_floats() const {
    const auto is_float = [&](const Place& place) {
      const DataType type = type_of(place);
      return holds_codes(place) || type == DataType::f32 || type == DataType::bf16 ||
             type == DataType::f16;
    };
    return std::ranges::all_of(read_, is_float) && std::ranges::all_of(written_, is_float);
  }

  bool is_needed() const {
    return !check_sink(structure_, sizes_).is_ok() ||
           std::ranges::any_of(read_, [&](const Place& p) { return is_copied(p, computed_); }) ||
           std::ranges::any_of(written_, [&](const Place& p) { return is_copied(p, result_); });
  }

  /// Hopper's forward wants Q and O both ragged or both dense: then both are copied.
  void keep_together(OperandId q, OperandId o) {
    const auto is_ragged = [&](OperandId id) { return structure_.type(id).storage.is_ragged(); };
    if (rows_ != Rows::for_copy_engine || !is_ragged(q) || !is_ragged(o)) return;
    const auto names = [&](const Place& place) { return *place.id == q || *place.id == o; };
    const bool q_is_copied = is_copied(*std::ranges::find_if(read_, names), computed_),
               o_is_copied = is_copied(*std::ranges::find_if(written_, names), result_);
    if (q_is_copied != o_is_copied) together_ = {q, o};
  }

  StagesBuilder run() && {
    for (const Place& place : read_)
      if (is_copied(place, computed_)) copy_in(place);
    if (!check_sink(structure_, sizes_).is_ok()) copy_sink();
    for (const Place& place : written_)
      if (is_copied(place, result_)) copy_out(place);
    structure_.qk_head_dim = static_cast<int32_t>(columns(structure_.qk_head_dim));
    structure_.v_head_dim = static_cast<int32_t>(columns(structure_.v_head_dim));
    return std::move(build_);
  }

 private:
  DataType type_of(const Place& place) const { return structure_.type(*place.id).dtype; }
  bool holds_codes(const Place& place) const { return structure_.type(*place.id).holds_codes(); }

  /// Keys or values in pages or a ring: rows that are copied as they lie, if at all.
  static bool is_apart(const problem::Storage& storage) {
    return storage.is_paged() || storage.is_ring();
  }
  bool are_apart() const {
    return is_apart(structure_.type(structure_.k).storage) ||
           is_apart(structure_.type(structure_.v).storage);
  }

  /// Of a row, as kernels want it.
  int64_t columns(int64_t head_dim) const {
    if (rows_ == Rows::as_they_lie) return head_dim;
    return round_up(head_dim, rows_ == Rows::for_copy_engine ? 8 : 16 / size_of(computed_));
  }

  bool rows_fit(const Place& place) const {
    switch (rows_) {
      case Rows::as_they_lie:
        return true;
      case Rows::on_16_bytes:
        return facts_.operand(*place.id).has_aligned_rows(type_of(place));
      case Rows::for_copy_engine:
        return can_copy(structure_, facts_, *place.id);
    }
    return true;
  }

  bool is_copied(const Place& place, DataType type) const {
    return holds_codes(place) || type_of(place) != type ||
           columns(place.head_dim) != place.head_dim || !rows_fit(place) ||
           std::ranges::count(together_, *place.id) > 0;
  }

  OperandId temporary(const Place& place, DataType type) {
    return build_.temporary_like(*place.id, type, columns(place.head_dim));
  }

  void copy_in(const Place& place) {
    CopyStep step;
    step.name = place.name;
    step.x = *place.id;
    step.y = temporary(place, computed_);
    // Pages and rings are copied as they lie; the rows of ragged sequences go to where dense ones
    // are. Rows past a length are nobody's: a rotation before this has not written them.
    if (const problem::Storage& storage = build_.type(step.x).storage; is_apart(storage))
      build_.type(step.y).storage = storage;
    else
      end_at(*place.lengths, step);
    *place.id = step.y;
    build_.before(std::move(step));
  }

  /// One for each head, in f32, beside the next.
  void copy_sink() {
    CopyStep step;
    step.name = "sink";
    step.x = structure_.sink;
    problem::OperandLayout& layout = sizes_.layout(step.x);
    if (layout.dims[1] == 1) layout.strides[1] = 0;
    layout.dims[1] = sizes_.q_heads;
    structure_.sink = step.y = build_.temporary_like(step.x, DataType::f32);
    build_.before(std::move(step));
  }

  void copy_out(const Place& place) {
    CopyStep step;
    step.name = place.name;
    step.x = temporary(place, result_);
    step.y = *place.id;
    // Of a dense tensor the attention writes the rows past a length, too.
    if (build_.type(step.y).storage.is_ragged()) end_at(*place.lengths, step);
    *place.id = step.x;
    build_.after(std::move(step));
  }

  AttentionStructure& structure_;
  problem::AttentionSizes& sizes_;
  const AttentionFacts& facts_;
  Rows rows_;
  std::vector<Place> read_, written_;
  StagesBuilder build_;
  DataType computed_, result_;
  std::vector<OperandId> together_;
};

}  // namespace

std::optional<Stages> legal_stages(const AttentionProblem& problem, Rows rows) {
  AttentionProblem attention = problem;
  AttentionStructure& s = attention.structure;
  if (s.q_rope || s.k_rope) return {};
  const AttentionFacts facts = problem::facts_of(problem);
  const int32_t qk = s.qk_head_dim, v = s.v_head_dim;
  if (!pay_in_forward(problem, facts)) rows = Rows::as_they_lie;
  const SideLengths queries = SideLengths::of_queries(s), keys = SideLengths::of_keys(s);
  Legalisation legal(s, attention.sizes, facts, rows,
                     {{"q", &s.q, qk, &queries}, {"k", &s.k, qk, &keys}, {"v", &s.v, v, &keys}},
                     {{"o", &s.o, v, &queries}});
  if (!legal.is_of_floats() || !legal.is_needed()) return {};
  legal.keep_together(s.q, s.o);
  StagesBuilder build = std::move(legal).run();
  return std::move(build).finish(attention);
}

std::optional<Stages> legal_stages(const AttentionBackwardProblem& problem, Rows rows) {
  AttentionBackwardProblem attention = problem;
  problem::AttentionBackwardStructure& s = attention.structure;
  AttentionStructure& f = s.forward;
  if (f.q_rope || f.k_rope || s.d_q_rope || s.d_k_rope) return {};
  const AttentionFacts facts = problem::facts_of(problem);
  const int32_t qk = f.qk_head_dim, v = f.v_head_dim;
  if (!pay(facts, f.q)) rows = Rows::as_they_lie;
  const SideLengths queries = SideLengths::of_queries(f), keys = SideLengths::of_keys(f);
  Legalisation legal(
      f, attention.sizes, facts, rows,
      {{"q", &f.q, qk, &queries},
       {"k", &f.k, qk, &keys},
       {"v", &f.v, v, &keys},
       {"o", &f.o, v, &queries},
       {"dO", &s.d_o, v, &queries}},
      {{"dQ", &s.d_q, qk, &queries}, {"dK", &s.d_k, qk, &keys}, {"dV", &s.d_v, v, &keys}});
  if (!legal.is_of_floats() || !legal.is_needed()) return {};
  StagesBuilder build = std::move(legal).run();
  return std::move(build).finish(attention);
}

}  // namespace heddle::engine::cuda
