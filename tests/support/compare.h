// How far results are from the definition, and whether anything was written that should not be.
#pragma once

#include <gtest/gtest.h>

#include "core/status.h"
#include "reference/values.h"
#include "support/program.h"

namespace heddle::testing {

/// What a tolerance is made of: error <= factor * naive error + floor. The root mean square of many
/// elements is held to the factor itself; the largest single error, which of two equally good
/// roundings is often twice the other's, to twice that.
struct Tolerance {
  double factor = 2;
  /// In rounding steps of the tensor's dtype at its largest (rms: its rms) magnitude.
  double floor_steps = 4;
  /// What is left where terms cancel: in rounding steps (f32, or f64 in f64
  /// programs) of the inputs' magnitude, about 1. Of sums over rows as much of each, at random.
  double cancellation_steps = 128;
  /// Beside that, of a largest magnitude that attention on fp8 operands gives (amax), a part of it:
  /// it is one number, and the naive one may be near by chance. That of O is of few weights, which
  /// have three bits.
  double part_of_amax = 0, part_of_amax_o = 0;
};

/// Largest relative error of rounding to `type`.
double rounding_step(DataType type);

/// Root mean square and largest error over the elements the contract writes; infinities must agree
/// in sign and NaN in kind, else the error is infinite.
struct Error {
  double rms = 0, max = 0;
  double rms_magnitude = 0, max_magnitude = 0;  ///< of the expected values
  double count = 0;                             ///< of the elements
};
Error error_of(const graph::Graph& graph, graph::TensorId id, const reference::Values& expected,
               const void* actual);

/// What a program's results must be: the definition in f64 of what its graph's nodes produce, and
/// the naive computation, most often in the io dtype (of the first node's input), which says how
/// far off one may be. It is evaluated once, for however many implementations are held against it,
/// and reads the validated program's graph and inputs, which are to outlive it.
class Definition {
 public:
  Definition(Program& program, reference::Precision naive);
  Definition(const Definition&) = delete;
  Definition& operator=(const Definition&) = delete;

  /// Checks every tensor that a node produces and `run`, the program or a copy of it, binds: each
  /// written element within the error allowed, every other byte still poison. `run` holds the
  /// results of the implementation under test.
  ::testing::AssertionResult is_met_by(const Program& run, Tolerance tolerance = {}) const;

 private:
  /// `before`: what its memory held, if that was not poison.
  ::testing::AssertionResult holds_the_codes(const Block& block, const unsigned char* before,
                                             graph::TensorId id) const;
  ::testing::AssertionResult is_met_by(const Block& block, const unsigned char* before,
                                       graph::TensorId id, bool may_be_undefined,
                                       Tolerance tolerance) const;

  const graph::Graph& graph_;
  DataType io_;  ///< of the naive computation
  reference::Buffers inputs_;
  Result<reference::Values> exact_, naive_;
};

/// Whether a program holds what its own definition says.
::testing::AssertionResult matches_reference(Program& program, reference::Precision naive,
                                             Tolerance tolerance = {});

}  // namespace heddle::testing
