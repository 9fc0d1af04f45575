#include "engine/cuda/events.h"

#include "engine/cuda/context.h"

namespace heddle::engine::cuda {

Result<void*> create_event() {
  HEDDLE_ASSIGN(const Driver* const driver, driver_with_context());
  CuEvent made = nullptr;
  HEDDLE_TRY(driver->check(driver->event_create(&made, 0), "cuEventCreate"));
  return static_cast<void*>(made);
}

void destroy_event(void* event) {
  if (event) driver()->event_destroy(static_cast<CuEvent>(event));
}

Status record_event(void* event, void* stream) {
  const Driver& loaded = *driver();
  return loaded.check(
      loaded.event_record(static_cast<CuEvent>(event), static_cast<CuStream>(stream)),
      "cuEventRecord");
}

Result<double> seconds_between(void* from, void* to) {
  const Driver& loaded = *driver();
  for (void* const event : {from, to})
    HEDDLE_TRY(
        loaded.check(loaded.event_synchronize(static_cast<CuEvent>(event)), "cuEventSynchronize"));
  float milliseconds = 0;
  HEDDLE_TRY(loaded.check(loaded.event_elapsed_time(&milliseconds, static_cast<CuEvent>(from),
                                                    static_cast<CuEvent>(to)),
                          "cuEventElapsedTime"));
  return double{milliseconds} * 1e-3;
}

}  // namespace heddle::engine::cuda
