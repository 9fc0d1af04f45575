#include "engine/marks.h"

#include <utility>

#include "engine/cuda/events.h"

namespace heddle::engine {

Result<Marks> Marks::make(Device device, size_t count) {
  Marks made(device);
  if (device == Device::cpu) {
    made.times_.resize(count);
    return made;
  }
  for (size_t n = 0; n < count; ++n) {
    HEDDLE_ASSIGN(void* const event, cuda::create_event());
    made.events_.push_back(event);
  }
  return made;
}

Marks::Marks(Marks&& other) noexcept
    : device_(other.device_),
      events_(std::exchange(other.events_, {})),
      times_(std::move(other.times_)) {}

Marks::~Marks() {
  for (void* const event : events_) cuda::destroy_event(event);
}

Status Marks::set(size_t mark, void* stream) {
  if (device_ == Device::cuda) return cuda::record_event(events_[mark], stream);
  times_[mark] = std::chrono::steady_clock::now();
  return {};
}

Result<double> Marks::seconds(size_t from, size_t to) const {
  if (device_ == Device::cuda) return cuda::seconds_between(events_[from], events_[to]);
  return std::chrono::duration<double>(times_[to] - times_[from]).count();
}

}  // namespace heddle::engine
