// Operands: what a problem reads and writes, each known by its place in the problem's list.
//
// An operand's type (what changes code) and its layout (what is passed to code) are kept apart:
// problems with equal structures run the same compiled kernel on different sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace heddle::problem {

/// Index into a problem's operand list and into the buffers given to Plan::execute.
using OperandId = int32_t;
inline constexpr OperandId kAbsent = -1;

/// How the rows of an operand lie in memory.
struct Storage {
  enum class Kind : uint8_t {
    dense,   ///< by strides
    ragged,  ///< sequences one after the other (THD)
    paged,   ///< K or V in blocks of rows, which a table names
    ring,    ///< K or V by strides, row s at s % dims[2]: the last so many rows alone are there
  };
  Kind kind = Kind::dense;
  /// What says where rows are. ragged: the operand [B+1] (i32 or i64) whose entry b, times
  /// ragged_multiplier, is the element where sequence b starts; the batch stride is then ignored.
  /// paged: the operand [B,1,pages,1] (i32) naming the block that holds page s / block_size; the
  /// stored operand itself is then a container [blocks, heads, block_size, head_dim].
  OperandId index = kAbsent;

  static Storage ragged_by(OperandId offsets) { return {Kind::ragged, offsets}; }
  static Storage paged_by(OperandId table) { return {Kind::paged, table}; }
  static Storage in_ring() { return {Kind::ring}; }
  bool is_ragged() const { return kind == Kind::ragged; }
  bool is_paged() const { return kind == Kind::paged; }
  bool is_ring() const { return kind == Kind::ring; }
  OperandId offsets() const { return is_ragged() ? index : kAbsent; }
  OperandId page_table() const { return is_paged() ? index : kAbsent; }

  friend bool operator==(const Storage&, const Storage&) = default;
};

/// What turns the codes of K or V into numbers: code * scale. Codes are i8, f8e4m3, or of 4 bits,
/// two to a u8: that of the even column is low, and both are 8 above their numbers.
struct Scales {
  /// channel: of each head, or the same of all.
  enum class Per : uint8_t { none, tensor, head, channel };
  Per per = Per::none;
  OperandId operand = kAbsent;  ///< f32 [1, 1 or heads, 1, 1 or head_dim]

  friend bool operator==(const Scales&, const Scales&) = default;
};

struct OperandType {
  DataType dtype = DataType::f32;
  /// A pass-by-value scalar: its buffer is host memory, read before execute returns.
  bool on_host = false;
  Storage storage;
  Scales scales;

  bool holds_codes() const { return scales.per != Scales::Per::none; }
  /// Numbers of a row that an element holds.
  int columns_of_element() const { return holds_codes() && dtype == DataType::u8 ? 2 : 1; }
  /// Elements that hold so many numbers of a row.
  int64_t elements_of(int64_t numbers) const { return numbers / columns_of_element(); }

  friend bool operator==(const OperandType&, const OperandType&) = default;
};

struct OperandLayout {
  /// Rank 4 [batch, head, row, column] for attention tensors; column-most last. Broadcast dims of a
  /// load are 1. Vectors and scalars keep rank 4 with ones.
  Dims dims;
  /// In elements. Strides of size-1 dims are normalised to 0, so that broadcasting needs no test.
  Dims strides;
  int64_t ragged_multiplier = 1;
  /// Its dims in the plan whose kernels run the problem, if that is one for other sizes
  /// (late_sizes.h); else empty. Kernels are chosen by these.
  Dims planned_dims;

  const Dims& dims_to_plan_for() const { return planned_dims.empty() ? dims : planned_dims; }
  /// Whether code that reads it has to step along dim `d`.
  bool varies(int d) const { return dims_to_plan_for()[d] != 1; }

  friend bool operator==(const OperandLayout&, const OperandLayout&) = default;
};

/// The operands of a problem's structure, in its order.
struct OperandTypes {
  std::vector<OperandType> operands;
  const OperandType& type(OperandId id) const { return operands[static_cast<size_t>(id)]; }
  OperandType& type(OperandId id) { return operands[static_cast<size_t>(id)]; }

  friend bool operator==(const OperandTypes&, const OperandTypes&) = default;
};

/// The layouts among a problem's sizes, one per operand.
struct OperandLayouts {
  std::vector<OperandLayout> layouts;
  const OperandLayout& layout(OperandId id) const { return layouts[static_cast<size_t>(id)]; }
  OperandLayout& layout(OperandId id) { return layouts[static_cast<size_t>(id)]; }

  friend bool operator==(const OperandLayouts&, const OperandLayouts&) = default;
};

}  // namespace heddle::problem
