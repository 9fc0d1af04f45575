#include "engine/cpu/operand_check.h"

#include <algorithm>

namespace heddle::engine::cpu {

using problem::kAbsent;
using problem::OperandId;
using problem::OperandLayout;

Status OperandCheck::all_well_formed() const {
  if (types_.size() != layouts_.size())
    return error(Code::invalid_value, "attention: {} operands but {} layouts", types_.size(),
                 layouts_.size());
  for (size_t n = 0; n < types_.size(); ++n) {
    const OperandLayout& layout = layouts_[n];
    if (layout.dims.rank() != 4 || layout.strides.rank() != 4)
      return error(Code::invalid_value,
                   "attention: operand {} has rank {} with {} strides, but must have 4 of both", n,
                   layout.dims.rank(), layout.strides.rank());
    for (int d = 0; d < 4; ++d) {
      if (layout.dims[d] < 0 || layout.strides[d] < 0)
        return error(
            Code::invalid_value,
            "attention: operand {} has dims {} and strides {}, neither of which may be negative", n,
            to_string(layout.dims), to_string(layout.strides));
    }
    const auto span = span_of(layout.dims, layout.strides);
    if (!span || *span > (int64_t{1} << 59))
      return error(
          Code::invalid_value,
          "attention: operand {} with dims {} and strides {} spans more than 2^59 elements", n,
          to_string(layout.dims), to_string(layout.strides));
    for (const OperandId link : {types_[n].ragged_offsets, types_[n].page_table}) {
      if (link == kAbsent) continue;
      if (!exists(link) || link == static_cast<OperandId>(n))
        return error(Code::invalid_value,
                     "attention: operand {} refers to operand {}, which does not exist", n, link);
      HEDDLE_TRY(integers(link, "ragged offsets or a page table"));
    }
    if (types_[n].ragged_offsets != kAbsent)
      HEDDLE_TRY(has_entries(types_[n].ragged_offsets, "ragged offsets", layout.dims[0] + 1));
  }
  return {};
}

Status OperandCheck::present(OperandId id, const char* label) const {
  if (id == kAbsent) return error(Code::attribute_not_set, "attention: {} is required", label);
  if (!exists(id))
    return error(Code::invalid_value, "attention: {} is operand {}, of only {}", label, id,
                 types_.size());
  return {};
}

Status OperandCheck::has_type(OperandId id, const char* label,
                              std::initializer_list<DataType> allowed) const {
  HEDDLE_TRY(present(id, label));
  if (std::find(allowed.begin(), allowed.end(), type(id).dtype) != allowed.end()) return {};
  std::string list;
  for (DataType t : allowed) list += (list.empty() ? "" : ", ") + std::string(name(t));
  return error(Code::graph_not_supported, "attention: {} is {}, but the CPU engine takes {}", label,
               name(type(id).dtype), list);
}

Status OperandCheck::floats(OperandId id, const char* label) const {
  return has_type(id, label, {DataType::f32, DataType::bf16, DataType::f16});
}
Status OperandCheck::integers(OperandId id, const char* label) const {
  return has_type(id, label, {DataType::i32, DataType::i64, DataType::u32, DataType::u64});
}
Status OperandCheck::numbers(OperandId id, const char* label) const {
  return has_type(
      id, label,
      {DataType::f64, DataType::f32, DataType::bf16, DataType::f16, DataType::i64, DataType::i32,
       DataType::i8, DataType::u64, DataType::u32, DataType::u8, DataType::boolean});
}

Status OperandCheck::has_dims(OperandId id, const char* label, const Dims& dims) const {
  HEDDLE_TRY(present(id, label));
  if (layout(id).dims == dims) return {};
  return error(Code::invalid_value, "attention: {} has dims {}, but must have {}", label,
               to_string(layout(id).dims), to_string(dims));
}

Status OperandCheck::has_entries(OperandId id, const char* label, int64_t count) const {
  HEDDLE_TRY(present(id, label));
  const Dims& dims = layout(id).dims;
  const auto is_one = [](int64_t dim) { return dim == 1; };
  const int64_t longest = *std::max_element(dims.begin(), dims.end());
  if (longest >= count && std::count_if(dims.begin(), dims.end(), is_one) >= 3) return {};
  return error(Code::invalid_value, "attention: {} has dims {}, but must have [{}, 1, 1, 1]", label,
               to_string(dims), count);
}

Status OperandCheck::broadcasts(OperandId id, const char* label, const Dims& cells,
                                bool rows_and_columns) const {
  HEDDLE_TRY(present(id, label));
  const Dims& dims = layout(id).dims;
  bool fits = true;
  for (int d = 0; d < 4; ++d) {
    const bool larger_is_fine = rows_and_columns && d >= 2;
    const bool exact_rows = !rows_and_columns && d >= 2;
    fits &= dims[d] == cells[d] || (!exact_rows && dims[d] == 1) ||
            (larger_is_fine && dims[d] > cells[d]);
  }
  if (fits) return {};
  return error(Code::invalid_value, "attention: {} has dims {}, which do not broadcast to {}",
               label, to_string(dims), to_string(cells));
}

Status OperandCheck::is_writable(OperandId id, const char* label) const {
  HEDDLE_TRY(present(id, label));
  Dims dims = layout(id).dims;
  if (type(id).ragged_offsets != kAbsent) dims[0] = 1;  // the batch stride is not used
  if (!overlaps_itself(dims, layout(id).strides)) return {};
  return error(Code::invalid_value,
               "attention: {} with dims {} and strides {} would be written on top of itself", label,
               to_string(layout(id).dims), to_string(layout(id).strides));
}

Status OperandCheck::ragged_has_lengths(OperandId id, const char* label, bool has_lengths) const {
  if (type(id).ragged_offsets == kAbsent || has_lengths) return {};
  return error(Code::attribute_not_set,
               "attention: {} is ragged, which needs the lengths of queries and keys", label);
}

Status OperandCheck::tensor(OperandId id, const char* label, const Dims& dims,
                            bool has_lengths) const {
  HEDDLE_TRY(floats(id, label));
  if (type(id).page_table != kAbsent)
    return error(Code::graph_not_supported, "attention: {} is paged, which only k and v may be",
                 label);
  HEDDLE_TRY(has_dims(id, label, dims));
  return ragged_has_lengths(id, label, has_lengths);
}

Status OperandCheck::paged_tensor(OperandId id, const char* label, const Dims& dims,
                                  bool has_lengths) const {
  HEDDLE_TRY(floats(id, label));
  const OperandId table = type(id).page_table;
  if (table == kAbsent) return tensor(id, label, dims, has_lengths);
  const Dims& blocks = layout(id).dims;
  if (blocks[1] != dims[1] || blocks[3] != dims[3] || blocks[2] < 1)
    return error(Code::invalid_value,
                 "attention: {} is paged with dims {}, but must have [blocks, {}, block size, {}]",
                 label, to_string(blocks), dims[1], dims[3]);
  const Dims& pages = layout(table).dims;
  const int64_t needed = (dims[2] + blocks[2] - 1) / blocks[2];
  if (pages[0] != dims[0] || pages[1] != 1 || pages[2] < needed || pages[3] != 1)
    return error(Code::invalid_value,
                 "attention: the page table of {} has dims {}, but must have [{}, 1, {}, 1]", label,
                 to_string(pages), dims[0], needed);
  if (!has_lengths)
    return error(Code::attribute_not_set, "attention: {} is paged, which needs lengths", label);
  return {};
}

}  // namespace heddle::engine::cpu
