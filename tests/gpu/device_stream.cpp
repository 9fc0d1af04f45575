#include "gpu/device_stream.h"

#include <array>

#include "engine/cuda/driver.h"
#include "engine/cuda/shared_object.h"

namespace heddle::testing {
namespace {

using engine::cuda::CuResult;

struct StreamApi {
  CuResult (*stream_create)(void**, unsigned flags);
  CuResult (*stream_destroy)(void*);
  CuResult (*stream_synchronise)(void*);
  CuResult (*begin_capture)(void*, int mode);
  CuResult (*end_capture)(void*, void** graph);
  CuResult (*graph_instantiate)(void** executable, void* graph, unsigned long long flags);
  CuResult (*graph_launch)(void* executable, void* stream);
  CuResult (*graph_executable_destroy)(void*);
  CuResult (*graph_destroy)(void*);
};

Result<StreamApi> load() {
  using engine::cuda::bind;
  const std::array<std::string, 1> names{"libcuda.so.1"};
  HEDDLE_ASSIGN(const engine::cuda::SharedObject library,
                engine::cuda::SharedObject::open("the NVIDIA driver", names));
  StreamApi api{};
  HEDDLE_TRY(bind(library, "cuStreamCreate", api.stream_create));
  HEDDLE_TRY(bind(library, "cuStreamDestroy_v2", api.stream_destroy));
  HEDDLE_TRY(bind(library, "cuStreamSynchronize", api.stream_synchronise));
  HEDDLE_TRY(bind(library, "cuStreamBeginCapture_v2", api.begin_capture));
  HEDDLE_TRY(bind(library, "cuStreamEndCapture", api.end_capture));
  HEDDLE_TRY(bind(library, "cuGraphInstantiateWithFlags", api.graph_instantiate));
  HEDDLE_TRY(bind(library, "cuGraphLaunch", api.graph_launch));
  HEDDLE_TRY(bind(library, "cuGraphExecDestroy", api.graph_executable_destroy));
  HEDDLE_TRY(bind(library, "cuGraphDestroy", api.graph_destroy));
  return api;
}

const StreamApi& api() {
  static const Result<StreamApi> loaded = load();
  return *loaded;
}

Status check(CuResult result, const char* call) {
  return engine::cuda::driver()->check(result, call);
}

constexpr unsigned kNonBlocking = 1;
constexpr int kGlobalCapture = 0;

}  // namespace

DeviceStream::DeviceStream() {
  status_ = check(api().stream_create(&stream_, kNonBlocking), "cuStreamCreate");
}

DeviceStream::~DeviceStream() {
  if (stream_) api().stream_destroy(stream_);
}

Status DeviceStream::synchronise() const {
  return check(api().stream_synchronise(stream_), "cuStreamSynchronize");
}

DeviceGraph::DeviceGraph(const DeviceStream& stream, const std::function<Status()>& work) {
  status_ = check(api().begin_capture(stream.handle(), kGlobalCapture), "cuStreamBeginCapture");
  if (!status_.is_ok()) return;
  const Status worked = work();
  status_ = check(api().end_capture(stream.handle(), &graph_), "cuStreamEndCapture");
  if (!worked.is_ok()) status_ = worked;
  if (status_.is_ok())
    status_ = check(api().graph_instantiate(&executable_, graph_, 0), "cuGraphInstantiate");
}

DeviceGraph::~DeviceGraph() {
  if (executable_) api().graph_executable_destroy(executable_);
  if (graph_) api().graph_destroy(graph_);
}

Status DeviceGraph::launch(const DeviceStream& stream) const {
  return check(api().graph_launch(executable_, stream.handle()), "cuGraphLaunch");
}

}  // namespace heddle::testing
