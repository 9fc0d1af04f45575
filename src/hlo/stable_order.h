// Topological order that disturbs a given order as little as possible.
#pragma once

#include <functional>
#include <queue>
#include <vector>

namespace heddle::hlo {

/// The nodes 0..n-1 so that each follows its dependencies; among those ready the smallest comes
/// first, so a valid order is returned as it is. Nodes on a cycle, or behind one, are missing.
inline std::vector<int> stable_order(const std::vector<std::vector<int>>& dependencies) {
  const int n = static_cast<int>(dependencies.size());
  std::vector<int> waiting_for(n);
  std::vector<std::vector<int>> dependents(n);
  for (int i = 0; i < n; ++i) {
    waiting_for[i] = static_cast<int>(dependencies[i].size());
    for (int dependency : dependencies[i]) dependents[dependency].push_back(i);
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < n; ++i) {
    if (waiting_for[i] == 0) ready.push(i);
  }
  std::vector<int> order;
  order.reserve(n);
  while (!ready.empty()) {
    const int i = ready.top();
    ready.pop();
    order.push_back(i);
    for (int dependent : dependents[i]) {
      if (--waiting_for[dependent] == 0) ready.push(dependent);
    }
  }
  return order;
}

}  // namespace heddle::hlo
