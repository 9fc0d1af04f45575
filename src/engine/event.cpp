#include "engine/event.h"

#include "engine/cuda/events.h"

namespace heddle::engine {

Result<Event> Event::make(Device device) {
  if (device == Device::cpu) return Event(nullptr);
  HEDDLE_ASSIGN(void* const made, cuda::create_event());
  return Event(made);
}

Event::~Event() { cuda::destroy_event(of_gpu_); }

Status Event::record(void* stream) {
  return of_gpu_ ? cuda::record_event(of_gpu_, stream) : Status();
}

Result<bool> Event::is_passed() const {
  if (!of_gpu_) return true;
  return cuda::is_passed(of_gpu_);
}

Status Event::wait() const { return of_gpu_ ? cuda::wait_for_event(of_gpu_) : Status(); }

}  // namespace heddle::engine
