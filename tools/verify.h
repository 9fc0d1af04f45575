// Whether a rewritten module still computes what the original does, on inputs of every kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "hlo/interpreter/judgement.h"
#include "hlo/module.h"
#include "tools/npy.h"

namespace heddle::tools {

/// A parameter's value, given by the user.
struct GivenInput {
  int64_t parameter = 0;
  Array array;
};

/// One set of inputs and what was found on it.
struct Trial {
  std::string inputs;  ///< "ordinary", ... as of hlo::Draw
  std::vector<hlo::OutputJudgement> outputs;
};

struct Verification {
  std::vector<Trial> trials;
  /// Of what was compared: the largest error of an output as a whole.
  double max_relative_error = 0;
  /// The first thing that is wrong, as a sentence; empty if nothing is.
  std::string complaint;
  bool ok() const { return complaint.empty(); }
};

/// Judges (hlo/interpreter/judgement.h) the rewritten module on every kind of random inputs, those
/// `given` excepted; Heddle's calls run on the CPU engine. An output of which nothing could be
/// compared on any of them is wrong too. Fails if one of the modules cannot be evaluated, with the
/// interpreter's reason.
Result<Verification> verify(const hlo::Module& original, const hlo::Module& fused, uint64_t seed,
                            const std::vector<GivenInput>& given = {});

/// Each `NAME=FILE.npy` or `NUMBER=FILE.npy`: a parameter of the entry, and its value. A parameter
/// is given once.
Result<std::vector<GivenInput>> read_inputs(const hlo::Module& module,
                                            const std::vector<std::string>& texts);

}  // namespace heddle::tools
