// The checks an operand of any problem can fail, each with its sentence.
#pragma once

#include <initializer_list>
#include <vector>

#include "core/status.h"
#include "problem/operand.h"

namespace heddle::engine::cpu {

class OperandCheck {
 public:
  OperandCheck(const std::vector<problem::OperandType>& types,
               const std::vector<problem::OperandLayout>& layouts)
      : types_(types), layouts_(layouts) {}

  const problem::OperandType& type(problem::OperandId id) const {
    return types_[static_cast<size_t>(id)];
  }
  const problem::OperandLayout& layout(problem::OperandId id) const {
    return layouts_[static_cast<size_t>(id)];
  }

  /// One layout per operand; rank 4; no negative dims or strides; spans within 64 bits; links
  /// resolve.
  Status all_well_formed() const;

  // Each of these fails if the operand is absent.
  Status has_type(problem::OperandId id, const char* label,
                  std::initializer_list<DataType> allowed) const;
  Status floats(problem::OperandId id, const char* label) const;    ///< f32, bf16 or f16
  Status integers(problem::OperandId id, const char* label) const;  ///< 32 or 64 bits
  Status numbers(problem::OperandId id,
                 const char* label) const;  ///< anything that converts to f32
  Status has_dims(problem::OperandId id, const char* label, const Dims& dims) const;
  Status has_entries(problem::OperandId id, const char* label, int64_t count) const;
  /// Every dim is 1, or that of `cells`, or (rows and columns only) larger.
  Status broadcasts(problem::OperandId id, const char* label, const Dims& cells,
                    bool rows_and_columns = true) const;
  /// No two indices share an element.
  Status is_writable(problem::OperandId id, const char* label) const;
  /// A tensor of floats with these dims; ragged only beside lengths; not paged.
  Status tensor(problem::OperandId id, const char* label, const Dims& dims, bool has_lengths) const;
  /// As tensor, or a container of pages [blocks, heads, block_size, head_dim] with its table.
  Status paged_tensor(problem::OperandId id, const char* label, const Dims& dims,
                      bool has_lengths) const;
  Status ragged_has_lengths(problem::OperandId id, const char* label, bool has_lengths) const;

 private:
  bool exists(problem::OperandId id) const {
    return id >= 0 && static_cast<size_t>(id) < types_.size();
  }
  Status present(problem::OperandId id, const char* label) const;

  const std::vector<problem::OperandType>& types_;
  const std::vector<problem::OperandLayout>& layouts_;
};

}  // namespace heddle::engine::cpu
