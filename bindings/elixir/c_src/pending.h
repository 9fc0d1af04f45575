// How many calls a GPU has been given and has not done: a driver whose queue is full lets who adds
// to it wait, which a scheduler of Erlang's own must not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "heddle/heddle.h"

namespace heddle::elixir {

/// Calls on the default stream, by halves: the end of each is an event, and one begins when that of
/// the half before the last is passed. Processes that call at once may overstep it by as many.
class Pending {
 public:
  /// Whether a call may be queued now; false too where the GPU does not answer.
  bool has_room();
  /// Waits for it. What fails is said by the call that follows.
  void wait_for_room();
  void note_call();

 private:
  /// Launches of a call are few, or one of a graph; drivers queue about a thousand.
  static constexpr uint64_t kHalf = 32;

  struct Free {
    void operator()(heddle_event* event) const { heddle_event_free(event); }
  };
  using Event = std::unique_ptr<heddle_event, Free>;

  /// What the next call has to wait for; null for nothing.
  heddle_event* limit();

  std::mutex mutex_;
  uint64_t calls_ = 0;
  /// Of the last two halves, made when they first end.
  std::array<Event, 2> ends_;
};

}  // namespace heddle::elixir
