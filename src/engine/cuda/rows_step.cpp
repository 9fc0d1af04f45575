#include "engine/cuda/rows_step.h"

#include <algorithm>

#include "core/dims.h"
#include "core/rounding.h"
#include "engine/cuda/number_list.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::OperandId;

int64_t RowsOperands::stride(OperandId id, int d) const {
  return layout(id).dims[d] == 1 ? 0 : layout(id).strides[d];
}

bool RowsOperands::is_64_bit(OperandId id) const {
  return id != kAbsent && type(id).dtype == DataType::i64;
}

bool RowsOperands::are_ragged() const {
  return step_.lengths != kAbsent || type(step_.x).storage.is_ragged() ||
         type(step_.y).storage.is_ragged();
}

Status RowsOperands::check_type(std::string_view op, std::string_view label, OperandId id,
                                std::initializer_list<DataType> types) const {
  if (id == kAbsent || std::find(types.begin(), types.end(), type(id).dtype) != types.end())
    return {};
  std::string list;
  for (DataType one : types) list += (list.empty() ? "" : ", ") + std::string(name(one));
  return error(Code::graph_not_supported, "cuda: {} {} is {}, but the kernel takes {}", op, label,
               name(type(id).dtype), list);
}

Status RowsOperands::check(std::string_view op) const {
  const auto integers = {DataType::i32, DataType::i64};
  for (OperandId id : {step_.x, step_.y}) {
    if (stride(id, 3) > 1) {
      return error(Code::graph_not_supported,
                   "cuda: {} operand {} has strides {}, expected a last one of 1", op, id,
                   to_string(layout(id).strides));
    }
    if (type(step_.x).storage.is_paged() != type(step_.y).storage.is_paged()) {
      return error(Code::graph_not_supported,
                   "cuda: {} has pages on one side, expected them on both or on none", op);
    }
    HEDDLE_TRY(check_type(op, "ragged offsets", type(id).storage.offsets(), integers));
    if (const OperandId offsets = type(id).storage.offsets(); offsets != kAbsent)
      HEDDLE_TRY(check_number_list(fmt::format("{} ragged offset", op), layout(offsets)));
  }
  if (step_.lengths != kAbsent)
    HEDDLE_TRY(check_number_list(fmt::format("{} seq_len", op), layout(step_.lengths)));
  return check_type(op, "lengths", step_.lengths, integers);
}

Result<Launch> RowsOperands::arrange(std::string_view op, int64_t units, int threads,
                                     streaming::RowsArguments& a) const {
  const Dims& dims = layout(step_.x).dims;
  const auto count = element_count(dims);
  if (count && *count == 0) return Launch{.grid_x = 0};
  constexpr int64_t kMost = INT32_MAX;
  if (dims[0] > kMost || dims[1] > kMost || dims[2] * dims[3] > kMost - threads) {
    return error(Code::graph_not_supported,
                 "cuda: {} x has dims {}; the kernel counts batch, heads and the elements of one "
                 "head in 31 bits",
                 op, to_string(dims));
  }
  for (int d = 0; d < 3; ++d) {
    a.x_stride[d] = stride(step_.x, d);
    a.y_stride[d] = stride(step_.y, d);
  }
  a.x_multiplier = layout(step_.x).ragged_multiplier;
  a.y_multiplier = layout(step_.y).ragged_multiplier;
  a.x_offsets_are_64_bit = is_64_bit(type(step_.x).storage.offsets());
  a.y_offsets_are_64_bit = is_64_bit(type(step_.y).storage.offsets());
  a.lengths_are_64_bit = is_64_bit(step_.lengths);
  a.lengths_cumulative = step_.lengths_cumulative;
  a.heads = static_cast<int>(dims[1]);
  a.length = static_cast<int>(dims[2]);
  // Four heads, which a thread has on their way at once. (Before it had, a rope of b4 h32 s4096
  // d128 of bf16: 3.82 TB/s, 3.7 with 8, 3.2 with 32.)
  a.heads_per_block = static_cast<int>(std::max<int64_t>(4, divide_up(dims[1], kMostBlocksAcross)));
  a.blocks = static_cast<int>(divide_up(dims[2] * units, int64_t{threads}));
  if (dims[0] * a.blocks > INT32_MAX) {
    return error(Code::graph_not_supported,
                 "cuda: {} x has dims {}, which take {} blocks of {} threads; a launch has {}", op,
                 to_string(dims), dims[0] * a.blocks, threads, INT32_MAX);
  }
  return Launch{.grid_x = static_cast<unsigned>(dims[0] * a.blocks),
                .grid_y = static_cast<unsigned>(divide_up(dims[1], a.heads_per_block)),
                .threads = static_cast<unsigned>(threads)};
}

void RowsOperands::bind(std::span<void* const> buffers, streaming::RowsArguments& arguments) const {
  const auto buffer = [&](OperandId id) -> void* {
    return id == kAbsent ? nullptr : buffers[static_cast<size_t>(id)];
  };
  arguments.x = buffer(step_.x);
  arguments.y = buffer(step_.y);
  arguments.x_offsets = buffer(type(step_.x).storage.offsets());
  arguments.y_offsets = buffer(type(step_.y).storage.offsets());
  arguments.lengths = buffer(step_.lengths);
}

}  // namespace heddle::engine::cuda
