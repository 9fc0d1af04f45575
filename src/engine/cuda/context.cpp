#include "engine/cuda/context.h"

#include <mutex>

#include "engine/cuda/device.h"

namespace heddle::engine::cuda {
namespace {

/// Device 0's primary context, kept until the process ends.
Result<CuContext> primary_context(const Driver& driver) {
  static std::mutex mutex;
  static CuContext kept = nullptr;
  const std::lock_guard lock(mutex);
  if (!kept) {
    HEDDLE_ASSIGN(const Device device, current_device(driver));  // 0: the thread has no context
    HEDDLE_TRY(driver.check(driver.primary_context_retain(&kept, device.handle),
                            "cuDevicePrimaryCtxRetain"));
  }
  return kept;
}

}  // namespace

Result<const Driver*> driver_with_context() {
  if (!driver().is_ok()) return driver().status();
  const Driver& loaded = *driver();
  CuContext current = nullptr;
  HEDDLE_TRY(loaded.check(loaded.context_get_current(&current), "cuCtxGetCurrent"));
  if (!current) {
    HEDDLE_ASSIGN(CuContext primary, primary_context(loaded));
    HEDDLE_TRY(loaded.check(loaded.context_set_current(primary), "cuCtxSetCurrent"));
  }
  return &loaded;
}

}  // namespace heddle::engine::cuda
