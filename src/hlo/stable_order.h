// Topological order that disturbs a given order as little as possible.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <span>
#include <vector>

namespace heddle::hlo {

/// Node `after` follows node `before`.
struct Dependency {
  int before = 0;
  int after = 0;
};

/// The nodes 0..n-1 so that each follows its dependencies; among those ready the smallest comes
/// first, so a valid order is returned as it is. Nodes on a cycle, or behind one, are missing.
inline std::vector<int> stable_order(int n, std::span<const Dependency> dependencies) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (std::all_of(dependencies.begin(), dependencies.end(),
                  [](const Dependency& d) { return d.before < d.after; }))
    return order;
  std::vector<int> waiting_for(n);
  std::vector<int> first(n + 1);  // of a node's dependents among all of them
  for (const Dependency& d : dependencies) {
    ++waiting_for[d.after];
    ++first[d.before + 1];
  }
  for (int i = 0; i < n; ++i) first[i + 1] += first[i];
  std::vector<int> dependents(dependencies.size());
  std::vector<int> next(first.begin(), first.end());
  for (const Dependency& d : dependencies) dependents[next[d.before]++] = d.after;
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < n; ++i) {
    if (waiting_for[i] == 0) ready.push(i);
  }
  order.clear();
  while (!ready.empty()) {
    const int i = ready.top();
    ready.pop();
    order.push_back(i);
    for (int at = first[i]; at < first[i + 1]; ++at) {
      if (--waiting_for[dependents[at]] == 0) ready.push(dependents[at]);
    }
  }
  return order;
}

}  // namespace heddle::hlo
