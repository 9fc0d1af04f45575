// Events of a device through the C interface.
#include <utility>

#include "api/c_error.h"
#include "api/c_values.h"
#include "engine/event.h"

struct heddle_event {
  heddle::engine::Event event;
};

namespace heddle::api {
namespace {

Status create(heddle_device device, heddle_event** event) {
  if (!event) return null_argument("heddle_event_create", "event");
  *event = nullptr;
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  HEDDLE_ASSIGN(engine::Event made, engine::Event::make(on));
  *event = new heddle_event{std::move(made)};
  return {};
}

Status record(heddle_event* event, void* stream) {
  if (!event) return null_argument("heddle_event_record", "event");
  return event->event.record(stream);
}

Status is_passed(const heddle_event* event, bool* passed) {
  if (!event) return null_argument("heddle_event_is_passed", "event");
  if (!passed) return null_argument("heddle_event_is_passed", "passed");
  HEDDLE_ASSIGN(*passed, event->event.is_passed());
  return {};
}

Status wait(const heddle_event* event) {
  if (!event) return null_argument("heddle_event_wait", "event");
  return event->event.wait();
}

}  // namespace
}  // namespace heddle::api

using namespace heddle;
using api::guarded;

extern "C" {

heddle_status heddle_event_create(heddle_device device, heddle_event** event) {
  return guarded([&] { return api::create(device, event); });
}

heddle_status heddle_event_record(heddle_event* event, void* stream) {
  return guarded([&] { return api::record(event, stream); });
}

heddle_status heddle_event_is_passed(const heddle_event* event, bool* passed) {
  return guarded([&] { return api::is_passed(event, passed); });
}

heddle_status heddle_event_wait(const heddle_event* event) {
  return guarded([&] { return api::wait(event); });
}

void heddle_event_free(heddle_event* event) { delete event; }

}  // extern "C"
