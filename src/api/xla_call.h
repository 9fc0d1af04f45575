// One call of the custom call "heddle": the frame's buffers checked against the graph and executed.
#pragma once

#include "api/plan_cache.h"
#include "api/xla_ffi.h"
#include "core/status.h"

namespace heddle::api::xla {

/// Plans what the frame's call will execute, so that its first execution need not.
Status prepare(const CallFrame& frame, PlanCache& plans);

/// Operands are the graph's inputs, results its outputs, both in ascending uid, then one u8
/// workspace. Checks their count, data types and element counts, so that a wrong program cannot
/// overrun a buffer.
Status call(const CallFrame& frame, PlanCache& plans, void* stream);

}  // namespace heddle::api::xla
