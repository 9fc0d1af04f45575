#include "gpu/device_graph.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "gpu/driver_library.h"

namespace heddle::testing {
namespace {

using engine::cuda::CuResult;

constexpr unsigned kNonBlockingStream = 1;
constexpr int kThreadLocalCapture = 1;

struct GraphApi {
  CuResult (*stream_create)(void**, unsigned flags);
  CuResult (*stream_destroy)(void*);
  CuResult (*stream_synchronise)(void*);
  CuResult (*launch_host_function)(void* stream, void (*function)(void*), void* argument);
  CuResult (*begin_capture)(void* stream, int mode);
  CuResult (*end_capture)(void* stream, void** graph);
  CuResult (*instantiate)(void** executable, void* graph, unsigned long long flags);
  CuResult (*launch)(void* executable, void* stream);
  CuResult (*get_nodes)(void* graph, void** nodes, size_t* count);
  CuResult (*graph_destroy)(void*);
  CuResult (*executable_destroy)(void*);
};

Result<GraphApi> load_graph_api() {
  using engine::cuda::bind;
  HEDDLE_ASSIGN(const engine::cuda::SharedObject library, driver_library());
  GraphApi api{};
  HEDDLE_TRY(bind(library, "cuStreamCreate", api.stream_create));
  HEDDLE_TRY(bind(library, "cuStreamDestroy_v2", api.stream_destroy));
  HEDDLE_TRY(bind(library, "cuStreamSynchronize", api.stream_synchronise));
  HEDDLE_TRY(bind(library, "cuLaunchHostFunc", api.launch_host_function));
  HEDDLE_TRY(bind(library, "cuStreamBeginCapture_v2", api.begin_capture));
  HEDDLE_TRY(bind(library, "cuStreamEndCapture", api.end_capture));
  HEDDLE_TRY(bind(library, "cuGraphInstantiateWithFlags", api.instantiate));
  HEDDLE_TRY(bind(library, "cuGraphLaunch", api.launch));
  HEDDLE_TRY(bind(library, "cuGraphGetNodes", api.get_nodes));
  HEDDLE_TRY(bind(library, "cuGraphDestroy", api.graph_destroy));
  HEDDLE_TRY(bind(library, "cuGraphExecDestroy", api.executable_destroy));
  return api;
}

const Result<GraphApi>& graph_api() {
  static const Result<GraphApi> api = load_graph_api();
  return api;
}

Status record(const GraphApi& api, const std::function<Status(void*)>& queue, void* stream,
              void*& graph, void*& executable) {
  HEDDLE_TRY(check(api.begin_capture(stream, kThreadLocalCapture), "cuStreamBeginCapture"));
  const Status queued = queue(stream);
  HEDDLE_TRY(check(api.end_capture(stream, &graph), "cuStreamEndCapture"));
  HEDDLE_TRY(queued);
  return check(api.instantiate(&executable, graph, 0), "cuGraphInstantiate");
}

}  // namespace

DeviceStream::DeviceStream() {
  status_ = graph_api().status();
  if (status_.is_ok())
    status_ = check(graph_api()->stream_create(&stream_, kNonBlockingStream), "cuStreamCreate");
}

DeviceStream::~DeviceStream() {
  if (stream_) graph_api()->stream_destroy(stream_);
}

Status DeviceStream::synchronise() const {
  return check(graph_api()->stream_synchronise(stream_), "cuStreamSynchronize");
}

struct StreamHold::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false, over = false;
};

StreamHold::StreamHold(const DeviceStream& stream) : state_(std::make_shared<State>()) {
  const auto wait = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<State>> mine(
        static_cast<std::shared_ptr<State>*>(argument));
    State& state = **mine;
    std::unique_lock lock(state.mutex);
    state.changed.wait_for(lock, std::chrono::seconds(10), [&state] { return state.released; });
    state.over = true;
  };
  auto shared = std::make_unique<std::shared_ptr<State>>(state_);
  status_ = check(graph_api()->launch_host_function(stream.handle(), wait, shared.get()),
                  "cuLaunchHostFunc");
  if (status_.is_ok()) (void)shared.release();
}

StreamHold::~StreamHold() {
  const std::lock_guard lock(state_->mutex);
  state_->released = true;
  state_->changed.notify_all();
}

bool StreamHold::holds() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->over;
}

DeviceGraph::DeviceGraph(const std::function<Status(void* stream)>& queue) {
  status_ = stream_.status();
  if (status_.is_ok()) status_ = record(*graph_api(), queue, stream_.handle(), graph_, executable_);
}

DeviceGraph::~DeviceGraph() {
  if (executable_) graph_api()->executable_destroy(executable_);
  if (graph_) graph_api()->graph_destroy(graph_);
}

size_t DeviceGraph::nodes() const {
  size_t count = 0;
  if (graph_) (void)graph_api()->get_nodes(graph_, nullptr, &count);
  return count;
}

Status DeviceGraph::replay() const {
  HEDDLE_TRY(check(graph_api()->launch(executable_, stream_.handle()), "cuGraphLaunch"));
  return stream_.synchronise();
}

}  // namespace heddle::testing
