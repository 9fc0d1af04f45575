#include "graph/uids.h"

#include <unordered_set>

namespace heddle::graph {

void assign_uids(Graph& graph) {
  std::unordered_set<int64_t> used;
  for (const Tensor& tensor : graph.tensors) used.insert(tensor.uid);
  int64_t next = 1;
  for (Tensor& tensor : graph.tensors) {
    if (tensor.uid != 0) continue;
    while (used.contains(next)) ++next;
    tensor.uid = next++;
  }
}

}  // namespace heddle::graph
