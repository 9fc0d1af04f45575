// RoPE around an attention: tables of cosines and sines made once per position for all heads, Q and
// K rotated into a copy (or the operand that asks for it) before the kernels read them, dQ and dK
// turned back as they are written.
#pragma once

#include <optional>

#include "engine/cpu/attention_binding.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "problem/attention.h"

namespace heddle::engine::cpu {

/// What is rotated: `x`, [batch, heads, length, head_dim].
struct Rotated {
  problem::OperandId x;
  int64_t batch, heads, length, columns;
  double scale;
  bool inverse;
  bool is_query;  ///< whether rows are queries (whose lengths apply) or keys
};

/// In numbers of Real, float or double.
template <class Real>
class RopeStage {
 public:
  RopeStage(const std::optional<problem::Rope>& rope, const Rotated& of,
            const problem::AttentionStructure& structure);

  bool is_present() const { return rope_.has_value(); }
  /// Takes the table's memory, and the rotated copy's where no operand receives it; with a
  /// measuring cursor only counts. `copy` receives the view of the copy.
  RopePass<Real> bind(WorkspaceCursor& workspace, const View* views, bool needs_copy,
                      View& copy) const;

  /// Makes the table; with `rotates`, also the rotated tensor.
  static void run(const RopePass<Real>& pass, int64_t batch, bool rotates,
                  const AttentionKernels<Real>& kernels, const Workers& workers);

 private:
  std::optional<problem::Rope> rope_;
  Rotated of_;
  DataType dtype_ = DataType::f32;
  problem::OperandId lengths_ = problem::kAbsent;
  bool lengths_cumulative_ = false;
  bool per_batch_ = false;
};

/// Q and K on the way in.
Rotated rotated_queries(const problem::AttentionStructure& s, const problem::AttentionSizes& z);
Rotated rotated_keys(const problem::AttentionStructure& s, const problem::AttentionSizes& z);

}  // namespace heddle::engine::cpu
