#include "execution.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "buffers.h"

namespace heddle::elixir {
namespace {

Error no_memory(const std::string& what, size_t bytes) {
  return {HEDDLE_OUT_OF_MEMORY,
          "There is no memory for " + what + " of " + std::to_string(bytes) + " bytes."};
}

size_t bytes_of(const Input& input) {
  if (const auto* binary = std::get_if<ErlNifBinary>(&input.data)) return binary->size;
  return std::get<const Memory*>(input.data)->held.bytes();
}

/// What is wrong with where the input of a port is, if anything is.
std::optional<Error> check_place(const Plan& plan, const Port& port, const Input& input) {
  const auto* const memory = std::get_if<const Memory*>(&input.data);
  if (memory && port.by_value) {
    return invalid("The " + describe(port) + " is a scalar passed by value, expected a binary.");
  }
  if (memory && (*memory)->held.device() != plan.device) {
    return invalid("The " + describe(port) + " lies on " + name_of((*memory)->held.device()) +
                   ", expected tensors on " + name_of(plan.device) +
                   ", where the call runs, or on the host.");
  }
  return std::nullopt;
}

Error wrong_size(const Port& port, const Input& input, const std::string& expected) {
  const bool is_binary = std::holds_alternative<ErlNifBinary>(input.data);
  return invalid("The " + describe(port) + " is given " +
                 (is_binary ? "a binary of " : "memory of ") + std::to_string(bytes_of(input)) +
                 " bytes, expected " + expected + ".");
}

/// The plan's inputs in its order, each where it may be and, unless packed, of its size.
Result<std::vector<const Input*>> in_order(const Plan& plan, std::span<const Input> inputs) {
  std::vector<const Input*> ordered;
  ordered.reserve(plan.inputs.size());
  for (const Port& port : plan.inputs) {
    const auto found = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const Input& input) { return input.uid == port.uid; });
    if (found == inputs.end()) {
      return invalid("The input " + describe(port) + " is not given, expected a binary" +
                     (port.packed ? "." : " of " + std::to_string(port.bytes) + " bytes."));
    }
    if (auto wrong = check_place(plan, port, *found)) return std::move(*wrong);
    if (!port.packed && bytes_of(*found) != port.bytes) {
      return wrong_size(port, *found, std::to_string(port.bytes));
    }
    ordered.push_back(&*found);
  }
  return ordered;
}

/// What an execution's tensors take: of packed ones as others of this execution say, which have to
/// be in the host's memory.
class Sizes {
 public:
  Sizes(const Plan& plan, const std::vector<const Input*>& inputs) : plan_(plan) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (plan.inputs[i].packed) continue;
      const auto* const binary = std::get_if<ErlNifBinary>(&inputs[i]->data);
      if (!binary && plan.device != HEDDLE_CPU) continue;
      uids_.push_back(plan.inputs[i].uid);
      addresses_.push_back(binary ? binary->data
                                  : std::get<const Memory*>(inputs[i]->data)->held.data());
    }
  }

  Result<size_t> of(const Port& port) const {
    if (!port.packed) return port.bytes;
    size_t bytes = 0;
    if (const heddle_status status = heddle_plan_tensor_bytes(
            plan_.plan, port.uid, uids_.data(), addresses_.data(), uids_.size(), &bytes);
        status != HEDDLE_OK) {
      return last_error(status);
    }
    return bytes;
  }

  /// What is wrong with the packed inputs, if anything is.
  std::optional<Error> check(const std::vector<const Input*>& inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!plan_.inputs[i].packed) continue;
      const Result<size_t> bytes = of(plan_.inputs[i]);
      if (const auto* error = std::get_if<Error>(&bytes)) return *error;
      if (bytes_of(*inputs[i]) < std::get<size_t>(bytes)) {
        return wrong_size(plan_.inputs[i], *inputs[i],
                          "at least " + std::to_string(std::get<size_t>(bytes)));
      }
    }
    return std::nullopt;
  }

  /// Of the plan's outputs.
  Result<std::vector<size_t>> outputs() const {
    std::vector<size_t> all;
    for (const Port& port : plan_.outputs) {
      const Result<size_t> bytes = of(port);
      if (const auto* error = std::get_if<Error>(&bytes)) return *error;
      if (std::get<size_t>(bytes) > port.bytes) {
        return invalid("The output " + describe(port) + " takes " +
                       std::to_string(std::get<size_t>(bytes)) +
                       " bytes by its offsets and lengths, expected no more than the " +
                       std::to_string(port.bytes) + " of its dims.");
      }
      all.push_back(std::get<size_t>(bytes));
    }
    return all;
  }

 private:
  const Plan& plan_;
  std::vector<int64_t> uids_;
  std::vector<void*> addresses_;
};

/// The addresses that an execution binds, and copies that live as long as it.
class Bindings {
 public:
  explicit Bindings(const Plan& plan) : plan_(plan) {
    uids_.reserve(plan.inputs.size() + plan.outputs.size());
    addresses_.reserve(uids_.capacity());
  }

  void add(int64_t uid, void* address) {
    uids_.push_back(uid);
    addresses_.push_back(address);
  }

  std::optional<Error> add_input(const Port& port, const Input& input) {
    if (const auto* memory = std::get_if<const Memory*>(&input.data)) {
      add(port.uid, (*memory)->held.data());
      return std::nullopt;
    }
    const auto& binary = std::get<ErlNifBinary>(input.data);
    const bool aligned = reinterpret_cast<uintptr_t>(binary.data) % port.alignment == 0;
    if (plan_.device == HEDDLE_CPU || port.by_value) {
      add(port.uid, aligned ? binary.data : host_copy(binary));
      return std::nullopt;
    }
    Result<DeviceMemory> copy = DeviceMemory::copy(plan_.device, binary.data, binary.size);
    if (auto* error = std::get_if<Error>(&copy)) return std::move(*error);
    device_copies_.push_back(std::move(std::get<DeviceMemory>(copy)));
    add(port.uid, device_copies_.back().data());
    return std::nullopt;
  }

  std::optional<Error> execute(void* workspace) const {
    const heddle_status status = heddle_plan_execute(plan_.plan, uids_.data(), addresses_.data(),
                                                     uids_.size(), nullptr, 0, workspace, nullptr);
    if (status != HEDDLE_OK) return last_error(status);
    return std::nullopt;
  }

 private:
  void* host_copy(const ErlNifBinary& binary) {
    host_copies_.push_back(std::make_unique<std::byte[]>(binary.size));
    std::memcpy(host_copies_.back().get(), binary.data, binary.size);
    return host_copies_.back().get();
  }

  const Plan& plan_;
  std::vector<int64_t> uids_;
  std::vector<void*> addresses_;
  std::vector<std::unique_ptr<std::byte[]>> host_copies_;
  std::vector<DeviceMemory> device_copies_;
};

/// Binaries being made; those that never become terms are freed.
class Binaries {
 public:
  explicit Binaries(ErlNifResourceType* buffers) : buffers_(buffers) {}
  ~Binaries() {
    for (Made& made : made_) {
      if (made.buffer) {
        enif_release_resource(made.buffer);
      } else {
        enif_release_binary(&made.binary);
      }
    }
  }
  Binaries(const Binaries&) = delete;
  Binaries& operator=(const Binaries&) = delete;

  /// Null if there is no memory.
  void* add(size_t bytes) {
    Made made{};
    if (bytes >= kLeastBuffer) {
      made.buffer = take_buffer(buffers_, bytes);
      if (!made.buffer) return nullptr;
    } else if (!enif_alloc_binary(bytes, &made.binary)) {
      return nullptr;
    }
    made_.push_back(made);
    return made.buffer ? buffer_data(made.buffer) : made.binary.data;
  }
  std::vector<ERL_NIF_TERM> terms(ErlNifEnv* env) {
    std::vector<ERL_NIF_TERM> terms;
    terms.reserve(made_.size());
    for (Made& made : made_) {
      if (made.buffer) {
        terms.push_back(make_buffer_binary(env, made.buffer));
        enif_release_resource(made.buffer);
      } else {
        terms.push_back(enif_make_binary(env, &made.binary));
      }
    }
    made_.clear();
    return terms;
  }

 private:
  /// One of the two.
  struct Made {
    void* buffer;
    ErlNifBinary binary;
  };
  ErlNifResourceType* buffers_;
  std::vector<Made> made_;
};

/// Into the host's own memory.
Made run_to_binaries(ErlNifEnv* env, const Plan& plan, const std::vector<size_t>& sizes,
                     Bindings& bindings, Resources& resources) {
  Binaries binaries(resources.buffers);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Port& port = plan.outputs[i];
    void* const data = binaries.add(sizes[i]);
    if (!data) return no_memory("the output " + describe(port), sizes[i]);
    if (plan.leaves_rows) std::memset(data, 0, sizes[i]);
    bindings.add(port.uid, data);
  }
  const BorrowedWorkspace workspace(resources.workspaces, plan.workspace_bytes);
  if (!workspace.memory()) return no_memory("a workspace", plan.workspace_bytes);
  if (auto failed = bindings.execute(workspace.memory())) return std::move(*failed);
  return binaries.terms(env);
}

using MadeOnDevice = std::variant<std::vector<DeviceMemory>, Error, Heavy>;

/// Memory of each size.
MadeOnDevice take(heddle_device device, const std::vector<size_t>& sizes, On on) {
  std::vector<DeviceMemory> taken;
  taken.reserve(sizes.size());
  for (const size_t bytes : sizes) {
    if (on == On::normal && device != HEDDLE_CPU) {
      std::optional<DeviceMemory> kept = DeviceMemory::of_kept(device, bytes);
      if (!kept) return heavy_on(device);
      taken.push_back(std::move(*kept));
      continue;
    }
    Result<DeviceMemory> memory = DeviceMemory::allocate(device, bytes);
    if (auto* error = std::get_if<Error>(&memory)) return std::move(*error);
    taken.push_back(std::move(std::get<DeviceMemory>(memory)));
  }
  if (on == On::dirty && device != HEDDLE_CPU) {
    for (const size_t bytes : sizes) DeviceMemory::keep_spare(device, bytes);
  }
  return taken;
}

/// Into memory of the plan's device. What is queued after it may have its workspace.
MadeOnDevice run_on_device(const Plan& plan, std::vector<size_t> sizes, Bindings& bindings, On on,
                           Resources& resources) {
  sizes.push_back(plan.workspace_bytes);
  MadeOnDevice made = take(plan.device, sizes, on);
  if (!std::holds_alternative<std::vector<DeviceMemory>>(made)) return made;
  auto& memory = std::get<std::vector<DeviceMemory>>(made);
  const DeviceMemory workspace = std::move(memory.back());
  memory.pop_back();
  for (size_t i = 0; i < memory.size(); ++i) {
    const heddle_status status =
        plan.leaves_rows
            ? heddle_memory_clear(plan.device, memory[i].data(), memory[i].bytes(), nullptr)
            : HEDDLE_OK;
    if (status != HEDDLE_OK) return last_error(status);
    bindings.add(plan.outputs[i].uid, memory[i].data());
  }
  if (plan.device != HEDDLE_CPU && on == On::dirty) resources.pending.wait_for_room();
  if (auto failed = bindings.execute(workspace.data())) return std::move(*failed);
  if (plan.device != HEDDLE_CPU) resources.pending.note_call();
  plan.has_run = true;
  return made;
}

/// Waits for the device.
Made copied_out(ErlNifEnv* env, const std::vector<DeviceMemory>& made,
                ErlNifResourceType* buffers) {
  Binaries binaries(buffers);
  for (const DeviceMemory& memory : made) {
    void* const data = binaries.add(memory.bytes());
    if (!data) return no_memory("an output", memory.bytes());
    const heddle_status status =
        heddle_memory_copy_out(memory.device(), data, memory.data(), memory.bytes(), nullptr);
    if (status != HEDDLE_OK) return last_error(status);
  }
  return binaries.terms(env);
}

/// Whether all that an execution reads and makes lies on the plan's GPU.
bool stays_on_device(const Plan& plan, const std::vector<const Input*>& inputs, Place place) {
  if (place != Place::memory) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!plan.inputs[i].by_value && std::holds_alternative<ErlNifBinary>(inputs[i]->data))
      return false;
  }
  return true;
}

}  // namespace

Made execute(ErlNifEnv* env, const Plan& plan, std::span<const Input> inputs, Place place, On on,
             Resources& resources) {
  const bool is_on_cpu = plan.device == HEDDLE_CPU;
  if (on == On::normal && !(is_on_cpu ? plan.is_light : plan.has_run.load())) {
    return heavy_on(plan.device);
  }
  const Result<std::vector<const Input*>> found = in_order(plan, inputs);
  if (const auto* error = std::get_if<Error>(&found)) return *error;
  const auto& given = std::get<std::vector<const Input*>>(found);
  if (on == On::normal && !is_on_cpu &&
      !(stays_on_device(plan, given, place) && resources.pending.has_room())) {
    return heavy_on(plan.device);
  }
  const Sizes sizes(plan, given);
  if (auto wrong = sizes.check(given)) return std::move(*wrong);
  const Result<std::vector<size_t>> counted = sizes.outputs();
  if (const auto* error = std::get_if<Error>(&counted)) return *error;
  const auto& output_bytes = std::get<std::vector<size_t>>(counted);

  Bindings bindings(plan);
  for (size_t i = 0; i < given.size(); ++i) {
    if (auto failed = bindings.add_input(plan.inputs[i], *given[i])) return std::move(*failed);
  }
  if (is_on_cpu && place == Place::binaries) {
    return run_to_binaries(env, plan, output_bytes, bindings, resources);
  }
  MadeOnDevice made = run_on_device(plan, output_bytes, bindings, on, resources);
  if (auto* error = std::get_if<Error>(&made)) return std::move(*error);
  if (const auto* heavy = std::get_if<Heavy>(&made)) return *heavy;
  auto& results = std::get<std::vector<DeviceMemory>>(made);
  if (place == Place::binaries) return copied_out(env, results, resources.buffers);
  std::vector<ERL_NIF_TERM> terms;
  terms.reserve(results.size());
  for (DeviceMemory& result : results) {
    terms.push_back(make_memory(env, resources.memory, std::move(result)));
  }
  return terms;
}

}  // namespace heddle::elixir
