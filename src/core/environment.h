// What the environment says: all variables that Heddle reads, their values and what they do.
#pragma once

#include <span>
#include <string_view>

#include "core/status.h"

namespace heddle::environment {

struct Variable {
  const char* name;
  const char* values;
  const char* meaning;
};

/// All of them, for people.
std::span<const Variable> variables();

/// What `name`, one of these, is set to; null if it is not.
const char* value_of(const char* name);

/// Whether a variable that takes 0 and 1 is 1. One that is not set, or to nothing, is 0.
Result<bool> is_on(const char* name);

}  // namespace heddle::environment
