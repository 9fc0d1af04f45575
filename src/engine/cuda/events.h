// Events of the driver: points of a stream whose time is known once it has passed them.
#pragma once

#include "core/status.h"

namespace heddle::engine::cuda {

/// Its memory is the driver's until destroy_event.
Result<void*> create_event();
void destroy_event(void* event);
/// Passed when all that is queued on the stream before it is done. A stream that is being captured
/// is refused.
Status record_event(void* event, void* stream);
/// Whether it has passed, as one that was never recorded has.
Result<bool> is_passed(void* event);
Status wait_for_event(void* event);
/// Waits until both have passed; to half a microsecond.
Result<double> seconds_between(void* from, void* to);

}  // namespace heddle::engine::cuda
