// The processors that a measurement runs on.
#pragma once

#include <string>

#include "core/status.h"

namespace heddle::tools {

/// "unknown" where the system does not say.
std::string processor_name();

int usable_processors();

/// Keeps the process to the first `count` of the processors it may use; the engine's threads
/// follow.
Status keep_to(int count);

}  // namespace heddle::tools
