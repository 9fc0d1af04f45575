#include "onnxruntime/debug.h"

#include <cstdio>

#include "core/environment.h"
#include "onnxruntime/host.h"

namespace heddle::onnxruntime {
namespace {

constexpr std::string_view kSwitches[] = {"HEDDLE_DISABLE_", "ORT_DISABLE_", "ORT_GQA_DISABLE_"};

/// The node's name in the model, which may have none.
Result<std::string> node_name(const abi::Api& api, const abi::KernelInfo* info) {
  size_t size = 0;
  HEDDLE_TRY(status_from(api, api.node_name(info, nullptr, &size)));
  std::string name(size, '\0');
  HEDDLE_TRY(status_from(api, api.node_name(info, name.data(), &size)));
  name.resize(size > 0 ? size - 1 : 0);  // the end of the string was counted
  return name;
}

}  // namespace

Result<std::string> switched_off() {
  std::string words;
  for (const environment::Variable& variable : environment::variables()) {
    const std::string_view name = variable.name;
    bool is_switch = false;
    for (const std::string_view begin : kSwitches) is_switch = is_switch || name.starts_with(begin);
    if (!is_switch) continue;
    HEDDLE_ASSIGN(const bool is_off, environment::is_on(variable.name));
    if (is_off) words += fmt::format(" {}", name);
  }
  return words;
}

Result<std::unique_ptr<const PathReport>> PathReport::make_if_wanted(const char* op,
                                                                     const abi::Api& api,
                                                                     const abi::KernelInfo* info) {
  HEDDLE_ASSIGN(const bool by_our_name, environment::is_on("HEDDLE_GQA_DEBUG"));
  HEDDLE_ASSIGN(const bool by_theirs, environment::is_on("ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"));
  if (!by_our_name && !by_theirs) return std::unique_ptr<const PathReport>();
  auto report = std::make_unique<PathReport>();
  HEDDLE_ASSIGN(const std::string name, node_name(api, info));
  report->node_ = fmt::format("{} '{}'", op, name);
  return std::unique_ptr<const PathReport>(std::move(report));
}

void PathReport::print(const std::string& attention_paths) const {
  if (attention_paths.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!seen_.insert(attention_paths.substr(0, attention_paths.find(':'))).second) return;
  }
  const std::string line = fmt::format("heddle: {}: {}\n", node_, attention_paths);
  std::fputs(line.c_str(), stderr);
}

}  // namespace heddle::onnxruntime
