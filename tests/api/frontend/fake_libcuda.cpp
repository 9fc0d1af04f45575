// What the builder calls of the NVIDIA driver, without a GPU: graphs of launches that are numbers.
// The test of the builder's CUDA graphs loads it as libcuda.so.1.
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kKernel = 0;
struct Node {
  int kind, value;
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};
struct Stream {
  Graph* captured_into = nullptr;
};
int live = 0;  // streams and graphs

}  // namespace

extern "C" {

int fake_live() { return live; }
/// What a library that queues work does; a kind other than 0 is no kernel.
void fake_launch(void* stream, int kind, int value) {
  if (Graph* const graph = static_cast<Stream*>(stream)->captured_into)
    graph->nodes.push_back(std::make_unique<Node>(Node{kind, value}));
}

int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? 0 : 101;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : 0;
  return 0;
}
int cuStreamCreate(Stream** stream, unsigned flags) {
  ++live;
  *stream = new Stream;
  return flags == 1 ? 0 : kInvalidValue;
}
int cuStreamDestroy_v2(Stream* stream) {
  --live;
  delete stream;
  return 0;
}
int cuStreamBeginCaptureToGraph(Stream* stream, Graph* graph, const void*, const void*,
                                size_t dependencies, int mode) {
  if (stream->captured_into || dependencies != 0 || mode != 2) return kInvalidValue;
  stream->captured_into = graph;
  return 0;
}
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  *graph = stream->captured_into;
  stream->captured_into = nullptr;
  return *graph ? 0 : kInvalidValue;
}
int cuGraphCreate(Graph** graph, unsigned flags) {
  ++live;
  *graph = new Graph;
  return flags == 0 ? 0 : kInvalidValue;
}
int cuGraphDestroy(Graph* graph) {
  --live;
  delete graph;
  return 0;
}
int cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
  for (size_t i = 0; nodes && i < *count && i < graph->nodes.size(); ++i)
    nodes[i] = graph->nodes[i].get();
  *count = graph->nodes.size();
  return 0;
}
int cuGraphNodeGetType(Node* node, int* kind) {
  *kind = node->kind;
  return 0;
}
int cuGraphKernelNodeGetParams_v2(Node* node, void* launch) {
  if (node->kind != kKernel) return kInvalidValue;
  std::memcpy(launch, &node->value, sizeof node->value);
  return 0;
}
int cuGraphKernelNodeSetParams_v2(Node* node, const void* launch) {
  if (node->kind != kKernel) return kInvalidValue;
  std::memcpy(&node->value, launch, sizeof node->value);
  return 0;
}

}  // extern "C"
