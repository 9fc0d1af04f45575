// Value numbering: which instructions of a computation compute the same value by the same
// operation.
#pragma once

#include <unordered_map>

#include "hlo/module.h"

namespace heddle::rewrite {

/// For each instruction the first one, in dependency order, with the same operation, attributes and
/// (numbered) operands; itself if it is the first, has an effect, or cannot be compared.
std::unordered_map<const hlo::Instruction*, const hlo::Instruction*> number_values(
    const hlo::Computation* computation);

}  // namespace heddle::rewrite
