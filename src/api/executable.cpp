#include "api/executable.h"

#include <algorithm>
#include <array>

#include "graph/names.h"

namespace heddle::api {
namespace {

// A plan's scratch begins at a multiple of this (a GPU's allocations do; a CPU engine needs 64).
constexpr uintptr_t kAlignment = 256;

void* aligned(void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

bool is_ragged(const graph::Tensor& tensor) { return tensor.ragged_offset != graph::kNone; }

MemoryView view_of(const graph::Tensor& tensor, void* pointer) {
  return {reinterpret_cast<uintptr_t>(pointer), size_of(*tensor.dtype), tensor.dims,
          tensor.strides};
}

}  // namespace

Status Executable::find_pointers(std::span<const Binding> bindings,
                                 std::span<void*> pointers) const {
  for (size_t i = 0; i < ports_.size(); ++i) {
    const Binding* found = nullptr;
    for (const Binding& binding : bindings) {
      if (binding.uid == ports_[i].uid) {
        found = &binding;
        break;
      }
    }
    const graph::Tensor& tensor = graph_[ports_[i].tensor];
    if (!found) {
      return error(Code::invalid_variant_pack, "Uid {} not found in variant pack. It is the {} {}.",
                   ports_[i].uid, ports_[i].output ? "output" : "input", describe(tensor));
    }
    if (!found->pointer) {
      return error(Code::invalid_variant_pack, "The {} is bound to a null pointer.",
                   describe(tensor));
    }
    const auto address = reinterpret_cast<uintptr_t>(found->pointer);
    if (address % static_cast<uintptr_t>(size_of(*tensor.dtype)) != 0) {
      return error(Code::invalid_variant_pack,
                   "The {} is bound to address {:#x}, expected a multiple of {}, the size of {}.",
                   describe(tensor), address, size_of(*tensor.dtype), name(*tensor.dtype));
    }
    pointers[i] = found->pointer;
  }
  return {};
}

bool Executable::may_be_one(size_t output, size_t input) const {
  return std::any_of(in_place_.begin(), in_place_.end(), [&](const InPlace& pair) {
    return pair.output == output && pair.input == input;
  });
}

/// A ragged tensor's places are data, so of one only the beginning is compared. Most tensors lie
/// apart as a whole: only of those whose spans meet are the elements compared.
Status Executable::check_overlaps(std::span<void* const> pointers, void* workspace) const {
  const auto meet = [](void* a, int64_t a_bytes, void* b, int64_t b_bytes) {
    const auto first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
    return first < second + static_cast<uintptr_t>(b_bytes) &&
           second < first + static_cast<uintptr_t>(a_bytes);
  };
  for (size_t i = 0; i < ports_.size(); ++i) {
    const graph::Tensor& written = graph_[ports_[i].tensor];
    if (!is_ragged(written) && meet(pointers[i], port_bytes_[i], workspace, workspace_bytes_)) {
      const MemoryView scratch{reinterpret_cast<uintptr_t>(workspace), 1, {workspace_bytes_}, {1}};
      if (overlap(view_of(written, pointers[i]), scratch)) {
        return error(Code::invalid_variant_pack, "The {} shares memory with the workspace.",
                     describe(written));
      }
    }
    if (!ports_[i].output) continue;
    for (size_t j = 0; j < ports_.size(); ++j) {
      if (i == j || (ports_[j].output && j < i)) continue;
      const graph::Tensor& other = graph_[ports_[j].tensor];
      const bool shared =
          is_ragged(written) || is_ragged(other)
              ? pointers[i] == pointers[j]
              : meet(pointers[i], port_bytes_[i], pointers[j], port_bytes_[j]) &&
                    overlap(view_of(written, pointers[i]), view_of(other, pointers[j]));
      if (!shared || (pointers[i] == pointers[j] && may_be_one(i, j))) continue;
      return error(Code::invalid_variant_pack,
                   "The output {} shares memory with the {} {}, expected memory of its own.",
                   describe(written), ports_[j].output ? "output" : "input", describe(other));
    }
  }
  return {};
}

Status Executable::execute(std::span<const Binding> bindings, void* workspace, void* stream) const {
  return run(bindings, workspace, stream, nullptr, 0);
}

Status Executable::execute_marked(std::span<const Binding> bindings, void* workspace, void* stream,
                                  engine::Marks& marks, size_t first) const {
  if (marks.count() < first || marks.count() - first <= steps_.size())
    return error(Code::invalid_value, "There are {} marks from {} on, expected {} for {} steps.",
                 marks.count() - std::min(first, marks.count()), first, steps_.size() + 1,
                 steps_.size());
  return run(bindings, workspace, stream, &marks, first);
}

Status Executable::run(std::span<const Binding> bindings, void* workspace, void* stream,
                       engine::Marks* marks, size_t first) const {
  std::array<void*, kMaxPorts> pointers;
  HEDDLE_TRY(find_pointers(bindings, pointers));
  if (workspace_bytes_ > 0 && !workspace) {
    return error(Code::invalid_variant_pack, "The workspace is a null pointer, expected {} bytes.",
                 workspace_bytes_);
  }
  HEDDLE_TRY(check_overlaps(pointers, workspace));

  char* const scratch = static_cast<char*>(aligned(workspace));
  std::array<void*, kMaxOperands> buffers;
  for (const Step& step : steps_) {
    for (size_t i = 0; i < step.operands.size(); ++i) {
      const Source& source = step.operands[i];
      switch (source.kind) {
        case Source::Kind::port:
          buffers[i] = pointers[source.index];
          break;
        case Source::Kind::workspace:
          buffers[i] = scratch + source.index;
          break;
        case Source::Kind::constant:
          buffers[i] = const_cast<int64_t*>(&constants_[source.index]);
          break;
      }
    }
    if (marks) HEDDLE_TRY(marks->set(first++, stream));
    HEDDLE_TRY(step.plan->execute({buffers.data(), step.operands.size()},
                                  scratch + step.workspace_offset, stream));
  }
  return marks ? marks->set(first, stream) : Status();
}

}  // namespace heddle::api
