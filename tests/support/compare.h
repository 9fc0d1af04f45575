// How far results are from the definition, and whether anything was written that should not be.
#pragma once

#include <gtest/gtest.h>

#include "support/program.h"

namespace heddle::testing {

/// What a tolerance is made of: error <= factor * naive error + floor. The root mean square is held
/// to the factor itself; the largest single error, which of two equally good roundings is often
/// twice the other's, to twice that.
struct Tolerance {
  double factor = 2;
  /// In rounding steps of the tensor's dtype at its largest (rms: its rms) magnitude.
  double floor_steps = 4;
  /// What is left where terms cancel: in rounding steps (f32, or f64 in f64
  /// programs) of the inputs' magnitude, about 1.
  double cancellation_steps = 128;
};

/// Largest relative error of rounding to `type`.
double rounding_step(DataType type);

/// Root mean square and largest error over the elements the contract writes; infinities must agree
/// in sign and NaN in kind, else the error is infinite.
struct Error {
  double rms = 0, max = 0;
  double rms_magnitude = 0, max_magnitude = 0;  ///< of the expected values
};
Error error_of(const graph::Graph& graph, graph::TensorId id, const reference::Values& expected,
               const void* actual);

/// Checks every tensor the graph's nodes produce and `program` binds: each written element within
/// the error of the naive computation in the io dtype (of the first node's input), every other byte
/// still poison. `program` holds the results of the implementation under test.
::testing::AssertionResult matches_reference(Program& program, DataType io,
                                             Tolerance tolerance = {});

}  // namespace heddle::testing
