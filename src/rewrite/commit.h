// Writes plans into the module: the only step of the rewriter that changes what a program computes
// with.
#pragma once

#include <vector>

#include "core/status.h"
#include "hlo/module.h"
#include "rewrite/plan.h"

namespace heddle::rewrite {

/// The target of Heddle's custom calls, under which its XLA handler is registered.
inline constexpr std::string_view kCallTarget = "heddle";

/// Adds a call for each plan (a null one is left out) and lets its results replace their targets.
Status commit(hlo::Module& module, const Elements& elements,
              const std::vector<std::optional<Plan>>& plans);

}  // namespace heddle::rewrite
