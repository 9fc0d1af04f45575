#include "pending.h"

namespace heddle::elixir {

heddle_event* Pending::limit() {
  const std::lock_guard lock(mutex_);
  return calls_ % kHalf == 0 ? ends_[calls_ / kHalf % 2].get() : nullptr;
}

bool Pending::has_room() {
  heddle_event* const before = limit();
  if (!before) return true;
  bool passed = false;
  return heddle_event_is_passed(before, &passed) == HEDDLE_OK && passed;
}

void Pending::wait_for_room() {
  if (heddle_event* const before = limit()) heddle_event_wait(before);
}

void Pending::note_call() {
  const std::lock_guard lock(mutex_);
  Event& end = ends_[calls_ / kHalf % 2];
  if (++calls_ % kHalf != 0) return;
  if (!end) {
    heddle_event* made = nullptr;
    heddle_event_create(HEDDLE_CUDA, &made);
    end.reset(made);
  }
  if (end) heddle_event_record(end.get(), nullptr);
}

}  // namespace heddle::elixir
