// Which problems the kernels take in several steps.
#pragma once

#include <optional>
#include <string>

#include "engine/cuda/stages.h"

namespace heddle::engine::cuda {

/// The steps of the problem on a device of `architecture`; none if one plan takes it whole. A step
/// may have steps of its own.
std::optional<Stages> stages_of(const Problem& problem, const std::string& architecture);

}  // namespace heddle::engine::cuda
