// Streams and captured graphs for tests.
#pragma once

#include <functional>

#include "core/status.h"

namespace heddle::testing {

/// A stream of its own, which does not wait for the default one. Made while a DeviceContext lives.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  const Status& status() const { return status_; }
  void* handle() const { return stream_; }
  Status synchronise() const;

 private:
  Status status_;
  void* stream_ = nullptr;
};

/// What `work` queued on a stream, captured instead of run. Under the strictest of capture modes:
/// an allocation or a synchronisation by any thread fails it.
class DeviceGraph {
 public:
  DeviceGraph(const DeviceStream& stream, const std::function<Status()>& work);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  const Status& status() const { return status_; }
  Status launch(const DeviceStream& stream) const;

 private:
  Status status_;
  void *graph_ = nullptr, *executable_ = nullptr;
};

}  // namespace heddle::testing
