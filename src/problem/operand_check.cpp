#include "problem/operand_check.h"

#include <algorithm>

#include "core/packed.h"
#include "core/rounding.h"

namespace heddle::problem {

Status OperandCheck::all_well_formed(int rank) const {
  if (types_.size() != layouts_.size())
    return error(Code::invalid_value, "{}: {} operands but {} layouts", op_, types_.size(),
                 layouts_.size());
  for (size_t n = 0; n < types_.size(); ++n) {
    const OperandLayout& layout = layouts_[n];
    const int expected = rank == kAnyRank ? layout.dims.rank() : rank;
    if (layout.dims.rank() != expected || layout.strides.rank() != expected)
      return error(Code::invalid_value,
                   "{}: operand {} has rank {} with {} strides, but must have {} of both", op_, n,
                   layout.dims.rank(), layout.strides.rank(), expected);
    for (int d = 0; d < expected; ++d) {
      if (layout.dims[d] < 0 || layout.strides[d] < 0)
        return error(Code::invalid_value,
                     "{}: operand {} has dims {} and strides {}, neither of which may be negative",
                     op_, n, to_string(layout.dims), to_string(layout.strides));
    }
    const auto span = span_of(layout.dims, layout.strides);
    if (!span || *span > (int64_t{1} << 59))
      return error(Code::invalid_value,
                   "{}: operand {} with dims {} and strides {} spans more than 2^59 elements", op_,
                   n, to_string(layout.dims), to_string(layout.strides));
    const Storage& storage = types_[n].storage;
    if (storage.kind == Storage::Kind::dense || storage.is_ring()) continue;
    if (!is_one(storage.index) || storage.index == static_cast<OperandId>(n))
      return error(Code::invalid_value, "{}: operand {} refers to operand {}, which does not exist",
                   op_, n, storage.index);
    HEDDLE_TRY(is_integer(storage.index, "ragged offsets or a page table"));
    if (storage.is_ragged())
      HEDDLE_TRY(has_entries(storage.index, "ragged offsets", layout.dims[0] + 1));
  }
  return {};
}

Status OperandCheck::exists(OperandId id, std::string_view label) const {
  if (id == kAbsent || is_one(id)) return {};
  return error(Code::invalid_value, "{}: {} is operand {}, of only {}", op_, label, id,
               types_.size());
}

Status OperandCheck::is_present(OperandId id, std::string_view label) const {
  if (id == kAbsent) return error(Code::attribute_not_set, "{}: {} is required", op_, label);
  return exists(id, label);
}

Status OperandCheck::is_writable(OperandId id, std::string_view label) const {
  const problem::OperandLayout& of = layout(id);
  if (!(type(id).storage.is_ragged() ? packed_overlaps_itself(of.dims, of.strides)
                                     : overlaps_itself(of.dims, of.strides)))
    return {};
  return error(Code::invalid_value,
               "{}: {} with dims {} and strides {} would be written on top of itself", op_, label,
               to_string(layout(id).dims), to_string(layout(id).strides));
}

Status OperandCheck::has_type(OperandId id, std::string_view label,
                              std::initializer_list<DataType> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), type(id).dtype) != allowed.end()) return {};
  std::string list;
  for (DataType t : allowed) list += (list.empty() ? "" : ", ") + std::string(name(t));
  return error(Code::invalid_value, "{}: {} is {}, but must be {}", op_, label,
               name(type(id).dtype), list);
}

Status OperandCheck::is_integer(OperandId id, std::string_view label) const {
  return has_type(id, label, {DataType::i32, DataType::i64, DataType::u32, DataType::u64});
}

Status OperandCheck::has_dims(OperandId id, std::string_view label, const Dims& dims) const {
  if (layout(id).dims == dims) return {};
  return error(Code::invalid_value, "{}: {} has dims {}, but must have {}", op_, label,
               to_string(layout(id).dims), to_string(dims));
}

Status OperandCheck::has_entries(OperandId id, std::string_view label, int64_t count) const {
  const Dims& dims = layout(id).dims;
  const auto is_one = [](int64_t dim) { return dim == 1; };
  const int64_t longest = *std::max_element(dims.begin(), dims.end());
  if (longest >= count && std::count_if(dims.begin(), dims.end(), is_one) >= 3) return {};
  return error(Code::invalid_value, "{}: {} has dims {}, but must have [{}, 1, 1, 1]", op_, label,
               to_string(dims), count);
}

Status OperandCheck::broadcasts(OperandId id, std::string_view label, const Dims& cells,
                                bool rows_and_columns) const {
  const Dims& dims = layout(id).dims;
  bool fits = true;
  for (int d = 0; d < 4; ++d) {
    const bool larger_is_fine = rows_and_columns && d >= 2;
    const bool exact_rows = !rows_and_columns && d >= 2;
    fits &= dims[d] == cells[d] || (!exact_rows && dims[d] == 1) ||
            (larger_is_fine && dims[d] > cells[d]);
  }
  if (fits) return {};
  return error(Code::invalid_value, "{}: {} has dims {}, which do not broadcast to {}", op_, label,
               to_string(dims), to_string(cells));
}

Status OperandCheck::ragged_has_lengths(OperandId id, std::string_view label,
                                        bool has_lengths) const {
  if (!type(id).storage.is_ragged() || has_lengths) return {};
  return error(Code::attribute_not_set,
               "{}: {} is ragged, which needs the lengths of queries and keys", op_, label);
}

Status OperandCheck::is_tensor(OperandId id, std::string_view label, const Dims& dims,
                               bool has_lengths) const {
  if (type(id).storage.is_paged())
    return error(Code::graph_not_supported, "{}: {} is paged, which only k and v may be", op_,
                 label);
  HEDDLE_TRY(has_dims(id, label, dims));
  return ragged_has_lengths(id, label, has_lengths);
}

Status OperandCheck::has_scales(OperandId id, std::string_view label, const Dims& dims) const {
  const OperandType& codes = type(id);
  HEDDLE_TRY(has_type(id, label, {DataType::i8, DataType::u8, DataType::f8e4m3}));
  HEDDLE_TRY(is_present(codes.scales.operand, "a scale of codes"));
  HEDDLE_TRY(has_type(codes.scales.operand, "a scale of codes", {DataType::f32}));
  using Per = Scales::Per;
  Dims expected{1, 1, 1, 1};
  if (codes.scales.per == Per::channel) expected[3] = dims[3];
  const bool is_shared =
      codes.scales.per == Per::channel && layout(codes.scales.operand).dims[1] == 1;
  if (codes.scales.per != Per::tensor && !is_shared) expected[1] = dims[1];
  return has_dims(codes.scales.operand, "a scale of codes", expected);
}

Status OperandCheck::is_cache(OperandId id, std::string_view label, Dims dims,
                              bool has_lengths) const {
  const OperandType& cache = type(id);
  if (cache.holds_codes()) HEDDLE_TRY(has_scales(id, label, dims));
  dims[3] = cache.elements_of(dims[3]);
  if (cache.storage.is_ring()) dims[2] = std::max<int64_t>(layout(id).dims[2], 1);
  const OperandId table = cache.storage.page_table();
  if (table == kAbsent) return is_tensor(id, label, dims, has_lengths);
  const Dims& blocks = layout(id).dims;
  if (blocks[1] != dims[1] || blocks[3] != dims[3] || blocks[2] < 1)
    return error(Code::invalid_value,
                 "{}: {} is paged with dims {}, but must have [blocks, {}, block size, {}]", op_,
                 label, to_string(blocks), dims[1], dims[3]);
  const Dims& pages = layout(table).dims;
  const int64_t needed = divide_up(dims[2], blocks[2]);
  if (pages[0] != dims[0] || pages[1] != 1 || pages[2] < needed || pages[3] != 1)
    return error(Code::invalid_value,
                 "{}: the page table of {} has dims {}, but must have [{}, 1, {}, 1]", op_, label,
                 to_string(pages), dims[0], needed);
  if (!has_lengths)
    return error(Code::attribute_not_set, "{}: {} is paged, which needs lengths", op_, label);
  return {};
}

}  // namespace heddle::problem
