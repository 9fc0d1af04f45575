#include "onnxruntime/kernel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "onnxruntime/element_types.h"
#include "onnxruntime/host.h"

namespace heddle::onnxruntime {
namespace {

constexpr size_t kMaxPorts = 24;  ///< of an operator

constexpr size_t kMaxPrepared = 8;  ///< blocks of a recipe
constexpr size_t kMaxViews = 8;     ///< of a recipe

size_t aligned(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::atomic<uint64_t> runs{0};

/// Outputs that the model has a name for.
Result<Wanted> wanted_outputs(const Operator& op, const abi::Api& api,
                              const abi::KernelInfo* info) {
  size_t count;
  HEDDLE_TRY(status_from(api, api.kernel_output_count(info, &count)));
  Wanted wanted(op.outputs.size());
  for (size_t n = 0; n < std::min(count, wanted.size()); ++n) {
    size_t size = 0;
    HEDDLE_TRY(status_from(api, api.kernel_output_name(info, n, nullptr, &size)));
    wanted[n] = size > 1;  // the end of the string is counted
  }
  return wanted;
}

/// Type, dims and address of a tensor.
Status describe(const abi::Api& api, const abi::Value* value, const char* name, Value& out) {
  abi::ShapeInfo* made;
  HEDDLE_TRY(status_from(api, api.get_tensor_type_and_shape(value, &made)));
  const std::unique_ptr<abi::ShapeInfo, void (*)(abi::ShapeInfo*)> info(made,
                                                                        api.release_shape_info);
  abi::ElementType type;
  HEDDLE_TRY(status_from(api, api.get_tensor_element_type(made, &type)));
  out.dtype = data_type(type);
  if (!out.dtype) {
    return error(Code::invalid_value, "'{}' is of ONNX's element type {}, which no operator takes.",
                 name, static_cast<int>(type));
  }
  size_t rank;
  HEDDLE_TRY(status_from(api, api.get_dimensions_count(made, &rank)));
  if (rank > kMaxRank) {
    return error(Code::invalid_value, "'{}' has {} dimensions, expected at most {}.", name, rank,
                 kMaxRank);
  }
  std::array<int64_t, kMaxRank> dims;
  HEDDLE_TRY(status_from(api, api.get_dimensions(made, dims.data(), rank)));
  out.dims = Dims(dims.begin(), dims.begin() + rank);
  // The host gives addresses of tensors for writing alone; Heddle writes to no input.
  return status_from(api, api.get_tensor_mutable_data(const_cast<abi::Value*>(value), &out.data));
}

/// The bytes of a tensor that lies at an address of no whole elements, as a program's array may;
/// 0 of any other.
size_t misplaced_bytes(const Value& value) {
  if (!value.is_given()) return 0;
  const auto element = static_cast<size_t>(size_of(*value.dtype));
  if (reinterpret_cast<uintptr_t>(value.data) % element == 0) return 0;
  return static_cast<size_t>(element_count(value.dims).value_or(0)) * element;
}

template <class T>
void append(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// All that a plan depends on, as bytes.
void write_key(std::string& key, const std::string& words, Inputs inputs, const Wanted& wanted,
               int64_t number, heddle_device device, int gpu) {
  key = words;
  append(key, number);
  append(key, device);
  append(key, gpu);
  for (const bool one : wanted) key += one ? '1' : '0';
  for (const Value& input : inputs) {
    append(key, input.dtype ? static_cast<int8_t>(*input.dtype) : int8_t{-1});
    append(key, static_cast<int8_t>(input.dims.rank()));
    for (const int64_t dim : input.dims) append(key, dim);
  }
}

/// Plans of all nodes of this library.
Plans& plans() {
  static Plans all;
  return all;
}

}  // namespace

uint64_t calls() { return runs.load(std::memory_order_relaxed); }

Result<std::unique_ptr<Kernel>> Kernel::make(const Operator& op, Target target, const abi::Api& api,
                                             const abi::KernelInfo* info) {
  std::unique_ptr<Kernel> kernel(new Kernel(op, std::move(target), api));
  Attributes attributes(api, info);
  HEDDLE_ASSIGN(kernel->node_, op.make(attributes));
  HEDDLE_ASSIGN(kernel->wanted_, wanted_outputs(op, api, info));
  HEDDLE_ASSIGN(const std::string switches, switched_off());
  kernel->words_ = op.name + attributes.words() + switches + kernel->target_.architecture;
  HEDDLE_ASSIGN(kernel->report_, PathReport::make_if_wanted(op.name, api, info));
  return kernel;
}

Status Kernel::take_allocator(const abi::KernelInfo* info) {
  abi::Allocator* allocator;
  HEDDLE_TRY(status_from(api_, api_.kernel_allocator(info, abi::MemoryType::provider, &allocator)));
  allocator_ = {allocator, {&api_}};
  return status_from(api_, api_.memory_info_id(allocator->info(allocator), &gpu_));
}

/// Gives the first of the inputs that the node has and that lie on its device.
Result<const abi::Value*> Kernel::read_inputs(const abi::KernelContext* context,
                                              std::span<Value> inputs) const {
  size_t count;
  HEDDLE_TRY(status_from(api_, api_.get_input_count(context, &count)));
  const abi::Value* first = nullptr;
  for (size_t n = 0; n < std::min(count, inputs.size()); ++n) {
    const abi::Value* value;
    HEDDLE_TRY(status_from(api_, api_.get_input(context, n, &value)));
    if (!value) continue;
    HEDDLE_TRY(describe(api_, value, op_.inputs[n].name, inputs[n]));
    if (!first && !op_.inputs[n].on_host) first = value;
  }
  return first;
}

Result<std::shared_ptr<const Plan>> Kernel::plan_for(Inputs inputs) const {
  HEDDLE_ASSIGN(const int64_t number, node_->number(inputs, wanted_));
  thread_local std::string key;  // its memory is used again
  write_key(key, words_, inputs, wanted_, number, target_.device, gpu_);
  return plans().find_or_make(key, [&]() -> Result<std::shared_ptr<const Plan>> {
    HEDDLE_ASSIGN(Recipe recipe, node_->recipe(inputs, wanted_, number));
    return plan_of(std::move(recipe), target_);
  });
}

Status Kernel::make_outputs(abi::KernelContext* context, const Plan& plan,
                            std::span<Value> outputs) const {
  for (size_t n = 0; n < outputs.size(); ++n) {
    if (!wanted_[n]) continue;
    const Output& expected = plan.outputs[n];
    abi::Value* value;
    HEDDLE_TRY(
        status_from(api_, api_.get_output(context, n, expected.dims.begin(),
                                          static_cast<size_t>(expected.dims.rank()), &value)));
    if (!value) return error(Code::invalid_value, "There is no output '{}'.", op_.outputs[n].name);
    HEDDLE_TRY(describe(api_, value, op_.outputs[n].name, outputs[n]));
    if (outputs[n].dtype != expected.dtype) {
      return error(Code::invalid_value, "Output '{}' is of type {} in the model, expected {}.",
                   op_.outputs[n].name, name(*outputs[n].dtype), name(expected.dtype));
    }
  }
  return {};
}

Status Kernel::run(abi::KernelContext* context) const {
  std::array<Value, kMaxPorts> values, results;
  const std::span<Value> inputs(values.data(), op_.inputs.size()),
      outputs(results.data(), op_.outputs.size());
  HEDDLE_ASSIGN(const abi::Value* const near, read_inputs(context, inputs));
  void* stream = nullptr;
  const bool is_on_host = target_.device == HEDDLE_CPU;
  if (!is_on_host) HEDDLE_TRY(status_from(api_, api_.get_gpu_stream(context, &stream)));
  HEDDLE_ASSIGN(const std::shared_ptr<const Plan> plan, plan_for(inputs));
  if (report_) report_->print(plan->attention_paths);
  HEDDLE_TRY(make_outputs(context, *plan, outputs));

  // Blocks that the node fills, copies of misplaced inputs, then the plan's workspace, in one piece
  // of memory.
  const size_t prepared = plan->prepared_bytes.size();
  size_t bytes = plan->workspace_bytes;
  for (const size_t block : plan->prepared_bytes) bytes += aligned(block);
  if (is_on_host) {
    for (const Value& input : inputs) bytes += aligned(misplaced_bytes(input));
  }
  std::optional<Scratch> scratch;
  if (bytes > 0 && is_on_host) {
    HEDDLE_ASSIGN(scratch, Scratch::allocate(api_, context, near, bytes));
  } else if (bytes > 0) {
    HEDDLE_ASSIGN(scratch, Scratch::allocate_on_stream(api_, context, allocator_.get(), bytes));
  }
  char* memory = scratch ? static_cast<char*>(scratch->memory()) : nullptr;
  std::array<void*, kMaxPrepared> blocks;
  for (size_t n = 0; n < prepared; ++n) {
    blocks[n] = memory;
    memory += aligned(plan->prepared_bytes[n]);
  }
  if (is_on_host) {
    for (Value& input : inputs) {
      const size_t moved = misplaced_bytes(input);
      if (moved == 0) continue;
      std::memcpy(memory, input.data, moved);
      input.data = memory;
      memory += aligned(moved);
    }
    HEDDLE_TRY(node_->prepare(inputs, wanted_, outputs, {blocks.data(), prepared}));
  }

  if (plan->plan) {
    const auto address = [&](int64_t uid) -> void* {
      if (uid >= uid_of_view(0)) {
        const View& view = plan->views[static_cast<size_t>(uid - uid_of_view(0))];
        return static_cast<char*>(inputs[view.input].data) + view.first_byte;
      }
      if (uid >= uid_of_prepared(0)) return blocks[static_cast<size_t>(uid - uid_of_prepared(0))];
      if (uid >= uid_of_output(0)) return outputs[static_cast<size_t>(uid - uid_of_output(0))].data;
      return inputs[static_cast<size_t>(uid - uid_of_input(0))].data;
    };
    std::array<void*, 2 * kMaxPorts + kMaxPrepared + kMaxViews> pointers;
    std::transform(plan->uids.begin(), plan->uids.end(), pointers.begin(), address);
    HEDDLE_TRY(status_of(heddle_plan_execute(plan->plan.get(), plan->uids.data(), pointers.data(),
                                             plan->uids.size(), nullptr, 0, memory, stream)));
  }
  if (is_on_host) node_->finish(inputs, outputs);
  runs.fetch_add(1, std::memory_order_relaxed);
  return {};
}

}  // namespace heddle::onnxruntime
