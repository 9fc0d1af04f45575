// What a cached kernel was compiled for, in words: read off its unit's source, which is all that
// its entry keeps of the problem.
#pragma once

#include <string>

namespace heddle::engine::cuda {

struct UnitSummary {
  std::string dtype;     ///< "bf16": of Q, K and V, or of x
  std::string head_dim;  ///< "128", "192/128" of q and k beside v; empty where no code knows it
  std::string features;  ///< "causal, dropout philox"; what sizes and addresses say is not in it
};

/// Fields stay empty of a source that has none of it.
UnitSummary summary_of_unit(const std::string& source);

}  // namespace heddle::engine::cuda
