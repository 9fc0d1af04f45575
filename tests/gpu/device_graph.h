// Streams, and work captured into a CUDA graph: what is queued while it is recorded must neither
// allocate nor synchronise, or the recording fails.
#pragma once

#include <functional>
#include <memory>

#include "core/status.h"

namespace heddle::testing {

/// A stream that does not wait for the default one.
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

/// Keeps what is queued on a stream from beginning while this lives, ten seconds at most.
class StreamHold {
 public:
  explicit StreamHold(const DeviceStream& stream);
  ~StreamHold();
  StreamHold(const StreamHold&) = delete;
  StreamHold& operator=(const StreamHold&) = delete;

  const Status& status() const { return status_; }
  /// Whether it still does: nobody waited for the stream, but for those ten seconds.
  bool holds() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
  Status status_;
};

class DeviceGraph {
 public:
  /// Records what `queue` puts on the stream it is given.
  explicit DeviceGraph(const std::function<Status(void* stream)>& queue);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  const Status& status() const { return status_; }
  /// How many launches, copies and fills were recorded.
  size_t nodes() const;
  /// Runs the recorded work and waits for it.
  Status replay() const;

 private:
  DeviceStream stream_;
  Status status_;
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace heddle::testing
