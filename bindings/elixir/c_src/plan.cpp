#include "plan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <span>

namespace heddle::elixir {
namespace {

struct Type {
  const char* name;
  int64_t bytes;
};

/// By heddle_dtype.
constexpr std::array<Type, 14> kTypes{{{"unset", 0},
                                       {"f64", 8},
                                       {"f32", 4},
                                       {"bf16", 2},
                                       {"f16", 2},
                                       {"f8e4m3", 1},
                                       {"f8e5m2", 1},
                                       {"i64", 8},
                                       {"i32", 4},
                                       {"i8", 1},
                                       {"u64", 8},
                                       {"u32", 4},
                                       {"u8", 1},
                                       {"boolean", 1}}};

std::string words(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t dim : dims) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

Result<Port> port_of(const heddle_plan* plan, int64_t uid, bool output) {
  heddle_tensor tensor{};
  if (const heddle_status status = heddle_plan_tensor(plan, uid, &tensor); status != HEDDLE_OK) {
    return last_error(status);
  }
  Port port{
      uid, tensor.name ? tensor.name : "", tensor.dtype, {}, 0, 0, false, tensor.pass_by_value};
  port.dims.assign(tensor.dims, tensor.dims + tensor.rank);
  port.alignment = static_cast<size_t>(kTypes[static_cast<size_t>(port.dtype)].bytes);
  port.packed = tensor.ragged_offset != 0;
  // 128 bits hold any sum of eight products of two numbers of 63.
  __int128 last = 0, count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    last += static_cast<__int128>(tensor.dims[i] - 1) * tensor.strides[i];
    if (count <= INT64_MAX) count *= tensor.dims[i];
  }
  const auto element = static_cast<int64_t>(port.alignment);
  if (port.packed) last = count - 1;  // as if every entry were the longest
  if (last < 0 || count > INT64_MAX || (last + 1) * element > PTRDIFF_MAX) {
    return invalid("The " + describe(port) + " takes more than 63 bits can count, expected less.");
  }
  if (output && last + 1 != count) {
    return Error{HEDDLE_GRAPH_NOT_SUPPORTED, "The output " + describe(port) +
                                                 " has gaps between its elements, expected strides "
                                                 "without any."};
  }
  port.bytes = static_cast<size_t>(last + 1) * static_cast<size_t>(element);
  if (output && !port.packed) {
    std::vector<int32_t> order(tensor.rank);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return tensor.strides[a] > tensor.strides[b]; });
    for (int32_t i = 0; i < tensor.rank; ++i) port.dims[i] = tensor.dims[order[i]];
  }
  return port;
}

using ListUids = heddle_status (*)(const heddle_plan*, const int64_t**, size_t*);

Result<std::vector<Port>> ports_of(const heddle_plan* plan, ListUids list, bool output) {
  const int64_t* uids = nullptr;
  size_t count = 0;
  if (const heddle_status status = list(plan, &uids, &count); status != HEDDLE_OK) {
    return last_error(status);
  }
  std::vector<Port> ports;
  for (size_t i = 0; i < count; ++i) {
    Result<Port> port = port_of(plan, uids[i], output);
    if (auto* error = std::get_if<Error>(&port)) return *error;
    ports.push_back(std::move(std::get<Port>(port)));
  }
  return ports;
}

// What is reckoned so takes 4 to 30 us on cores with AVX-512, and below 0.4 ms in the portable
// kernels.
constexpr double kLightWork = 4 << 20;

/// An upper bound of the products of a call: no op has more than some for each element and each
/// place of the longest dim. A row has something to do beside its products, and so has a cell of a
/// score expression, which a long text has many ops of.
double work_of(const Plan& plan, size_t text_bytes) {
  constexpr double kLeastRow = 64, kTextOfAnOp = 2048;
  double elements = 0;
  int64_t longest = 1;
  for (const std::vector<Port>* ports : {&plan.inputs, &plan.outputs}) {
    for (const Port& port : *ports) {
      double rows = 1;
      for (const int64_t dim : port.dims) {
        rows *= static_cast<double>(dim);
        longest = std::max(longest, dim);
      }
      const double row = port.dims.empty() ? 1 : static_cast<double>(port.dims.back());
      elements += rows / row * std::max(row, kLeastRow);
    }
  }
  return elements * static_cast<double>(longest) *
         std::ceil(static_cast<double>(text_bytes) / kTextOfAnOp);
}

std::atomic<int64_t> live = 0;

void free_plan(ErlNifEnv*, void* object) { static_cast<Plan*>(object)->~Plan(); }

}  // namespace

const char* name_of(heddle_dtype dtype) { return kTypes[static_cast<size_t>(dtype)].name; }

std::string describe(const Port& port) {
  std::string text = "tensor ";
  text += port.name.empty() ? "of uid " + std::to_string(port.uid) : "'" + port.name + "'";
  return text + ", " + name_of(port.dtype) + " " + words(port.dims) + ",";
}

Plan::Plan() { ++live; }
Plan::~Plan() {
  heddle_plan_free(plan);
  --live;
}

int64_t live_plans() { return live; }

ErlNifResourceType* open_plans(ErlNifEnv* env) {
  // A Plan of another layout needs another name, so that no version frees what it does not know.
  const auto flags = static_cast<ErlNifResourceFlags>(ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER);
  return enif_open_resource_type(env, nullptr, "heddle_plan_3", free_plan, flags, nullptr);
}

PlanReference share(const PlanReference& plan) {
  enif_keep_resource(plan.get());
  return PlanReference(plan.get());
}

Result<PlanReference> make_plan(ErlNifResourceType* type, std::string_view text,
                                heddle_device device) {
  void* const memory = enif_alloc_resource(type, sizeof(Plan));
  PlanReference reference(new (memory) Plan);
  heddle_graph* parsed = nullptr;
  if (const heddle_status status = heddle_graph_parse(text.data(), text.size(), &parsed);
      status != HEDDLE_OK) {
    return last_error(status);
  }
  const std::unique_ptr<heddle_graph, decltype(&heddle_graph_free)> graph(parsed,
                                                                          heddle_graph_free);
  if (const heddle_status status = heddle_plan_create(graph.get(), device, &reference->plan);
      status != HEDDLE_OK) {
    return last_error(status);
  }
  Result<std::vector<Port>> inputs = ports_of(reference->plan, heddle_plan_inputs, false);
  if (auto* error = std::get_if<Error>(&inputs)) return *error;
  Result<std::vector<Port>> outputs = ports_of(reference->plan, heddle_plan_outputs, true);
  if (auto* error = std::get_if<Error>(&outputs)) return *error;
  reference->inputs = std::move(std::get<std::vector<Port>>(inputs));
  reference->outputs = std::move(std::get<std::vector<Port>>(outputs));
  reference->device = device;
  // Lengths, offsets and page tables are integers.
  reference->leaves_rows = std::any_of(
      reference->inputs.begin(), reference->inputs.end(),
      [](const Port& port) { return port.dtype == HEDDLE_I32 || port.dtype == HEDDLE_I64; });
  reference->is_light = device == HEDDLE_CPU && work_of(*reference, text.size()) <= kLightWork;
  reference->workspace_bytes = heddle_plan_workspace_bytes(reference->plan);
  return reference;
}

}  // namespace heddle::elixir
