#include "engine/cuda/number_list.h"

namespace heddle::engine::cuda {

Status check_number_list(std::string_view name, const problem::OperandLayout& layout) {
  for (int d = 0; d < layout.dims.rank(); ++d) {
    if (layout.dims[d] > 1 && layout.strides[d] != 1)
      return error(Code::graph_not_supported,
                   "cuda: {} has dims {} and strides {}; kernels take numbers one beside the other",
                   name, to_string(layout.dims), to_string(layout.strides));
  }
  return {};
}

}  // namespace heddle::engine::cuda
