#include "engine/cuda/context.h"

#include <map>
#include <mutex>

#include "engine/cuda/device.h"

namespace heddle::engine::cuda {
namespace {

Result<CuContext> primary_context(const Driver& driver, CuDevice device) {
  static std::mutex mutex;
  static std::map<CuDevice, CuContext> kept;
  const std::lock_guard lock(mutex);
  if (const auto found = kept.find(device); found != kept.end()) return found->second;
  CuContext retained = nullptr;
  HEDDLE_TRY(
      driver.check(driver.primary_context_retain(&retained, device), "cuDevicePrimaryCtxRetain"));
  kept[device] = retained;
  return retained;
}

Result<bool> has_context(const Driver& driver) {
  CuContext current = nullptr;
  HEDDLE_TRY(driver.check(driver.context_get_current(&current), "cuCtxGetCurrent"));
  return current != nullptr;
}

}  // namespace

Status give_context(const Driver& driver, CuDevice device) {
  HEDDLE_ASSIGN(const bool has_one, has_context(driver));
  if (has_one) return {};
  HEDDLE_ASSIGN(CuContext primary, primary_context(driver, device));
  return driver.check(driver.context_set_current(primary), "cuCtxSetCurrent");
}

Result<const Driver*> driver_with_context() {
  if (!driver().is_ok()) return driver().status();
  const Driver& loaded = *driver();
  HEDDLE_ASSIGN(const bool has_one, has_context(loaded));
  if (!has_one) {
    HEDDLE_ASSIGN(const Device first, current_device(loaded));
    HEDDLE_TRY(give_context(loaded, first.handle));
  }
  return &loaded;
}

}  // namespace heddle::engine::cuda
