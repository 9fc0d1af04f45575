#include "engine/cuda/events.h"

#include "engine/cuda/context.h"
#include "engine/cuda/refuse_capture.h"

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
  HEDDLE_ASSIGN(const Driver* const driver, driver_with_context());
  const auto on = static_cast<CuStream>(stream);
  HEDDLE_TRY(refuse_capture(*driver, on));
  return driver->check(driver->event_record(static_cast<CuEvent>(event), on), "cuEventRecord");
}

Result<bool> is_passed(void* event) {
  HEDDLE_ASSIGN(const Driver* const driver, driver_with_context());
  const CuResult result = driver->event_query(static_cast<CuEvent>(event));
  if (result == kCudaNotReady) return false;
  HEDDLE_TRY(driver->check(result, "cuEventQuery"));
  return true;
}

Status wait_for_event(void* event) {
  HEDDLE_ASSIGN(const Driver* const driver, driver_with_context());
  return driver->check(driver->event_synchronize(static_cast<CuEvent>(event)),
                       "cuEventSynchronize");
}

Result<double> seconds_between(void* from, void* to) {
  const Driver& loaded = *driver();
  for (void* const event : {from, to}) HEDDLE_TRY(wait_for_event(event));
  float milliseconds = 0;
  HEDDLE_TRY(loaded.check(loaded.event_elapsed_time(&milliseconds, static_cast<CuEvent>(from),
                                                    static_cast<CuEvent>(to)),
                          "cuEventElapsedTime"));
  return double{milliseconds} * 1e-3;
}

}  // namespace heddle::engine::cuda
