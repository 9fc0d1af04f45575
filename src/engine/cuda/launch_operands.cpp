#include "engine/cuda/launch_operands.h"

#include <cstring>

namespace heddle::engine::cuda {

attention::Tensor tensor_of(const problem::AttentionStructure& structure,
                            const problem::AttentionSizes& sizes, problem::OperandId id) {
  attention::Tensor tensor{};
  if (id == problem::kAbsent) return tensor;
  const problem::OperandType& type = structure.type(id);
  const problem::OperandLayout& layout = sizes.layout(id);
  for (int i = 0; i < 4 && i < layout.strides.rank(); ++i) tensor.stride[i] = layout.strides[i];
  tensor.multiplier = layout.ragged_multiplier;
  if (type.storage.is_ragged()) {
    tensor.offsets_are_64_bit = structure.type(type.storage.index).dtype == DataType::i64;
  }
  return tensor;
}

void bind_entries(std::span<const Entry> entries, std::span<void* const> buffers,
                  void* parameters) {
  for (const Entry& entry : entries) {
    void* buffer = buffers[static_cast<size_t>(entry.operand)];
    char* target = static_cast<char*>(parameters) + entry.offset;
    switch (entry.kind) {
      case Entry::Kind::address:
        std::memcpy(target, &buffer, sizeof buffer);
        break;
      case Entry::Kind::integer: {
        int64_t value = 0;
        if (size_of(entry.dtype) == 8) {
          std::memcpy(&value, buffer, 8);
        } else {
          value = static_cast<int64_t>(load(entry.dtype, buffer, 0));
        }
        std::memcpy(target, &value, sizeof value);
        break;
      }
      case Entry::Kind::real: {
        const float value = static_cast<float>(load(entry.dtype, buffer, 0));
        std::memcpy(target, &value, sizeof value);
        break;
      }
    }
  }
}

Status check_addresses(std::span<const problem::NamedOperand> operands,
                       std::span<void* const> buffers) {
  for (const auto& [id, name] : operands) {
    const auto address = reinterpret_cast<uintptr_t>(buffers[static_cast<size_t>(id)]);
    if (address % 16 != 0) {
      return error(Code::invalid_variant_pack,
                   "cuda: {} is at address {:#x}, expected a multiple of 16 for the kernel planned "
                   "for it",
                   name, address);
    }
  }
  return {};
}

}  // namespace heddle::engine::cuda
