// What can be wrong with an operand of any problem, each with its sentence.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "problem/operand.h"

namespace heddle::problem {

/// Any rank: dims and strides need as many.
inline constexpr int kAnyRank = -1;

class OperandCheck {
 public:
  /// Sentences begin with `op`.
  OperandCheck(std::string_view op, const std::vector<OperandType>& types,
               const std::vector<OperandLayout>& layouts)
      : op_(op), types_(types), layouts_(layouts) {}

  const OperandType& type(OperandId id) const { return types_[static_cast<size_t>(id)]; }
  const OperandLayout& layout(OperandId id) const { return layouts_[static_cast<size_t>(id)]; }

  /// One layout per operand, of this rank; no negative dims or strides; spans within 64 bits; links
  /// resolve.
  Status all_well_formed(int rank) const;
  /// Whether it is an operand of the problem, or absent.
  Status exists(OperandId id, std::string_view label) const;
  Status is_present(OperandId id, std::string_view label) const;
  /// No two indices share an element.
  Status is_writable(OperandId id, std::string_view label) const;

  // Each of these is asked of an operand that is present.
  Status has_type(OperandId id, std::string_view label,
                  std::initializer_list<DataType> allowed) const;
  Status is_integer(OperandId id, std::string_view label) const;  ///< of 32 or 64 bits
  Status has_dims(OperandId id, std::string_view label, const Dims& dims) const;
  Status has_entries(OperandId id, std::string_view label, int64_t count) const;
  /// Every dim is 1, or that of `cells`, or (rows and columns only) larger.
  Status broadcasts(OperandId id, std::string_view label, const Dims& cells,
                    bool rows_and_columns = true) const;
  /// Has these dims; ragged only beside lengths; not paged.
  Status is_tensor(OperandId id, std::string_view label, const Dims& dims, bool has_lengths) const;
  /// A cache of K or V: as is_tensor, or a container of pages [blocks, heads, block_size, head_dim]
  /// with its table, or a ring of any rows; its columns may be codes.
  Status is_cache(OperandId id, std::string_view label, Dims dims, bool has_lengths) const;
  Status ragged_has_lengths(OperandId id, std::string_view label, bool has_lengths) const;

 private:
  Status has_scales(OperandId id, std::string_view label, const Dims& dims) const;
  bool is_one(OperandId id) const { return id >= 0 && static_cast<size_t>(id) < types_.size(); }

  std::string_view op_;
  const std::vector<OperandType>& types_;
  const std::vector<OperandLayout>& layouts_;
};

}  // namespace heddle::problem
