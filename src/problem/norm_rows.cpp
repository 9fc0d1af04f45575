#include "problem/norm_rows.h"

#include <algorithm>

namespace heddle::problem {
namespace {

int64_t product(const Dims& dims, int first, int end) {
  int64_t count = 1;
  for (int d = first; d < end; ++d) count *= dims[d];
  return count;
}

}  // namespace

void NormRows::join(int normalised_dims, int widest) {
  const Dims& x = sizes_.layout(members_.front().id).dims;
  const int split = x.rank() - normalised_dims;
  rows = product(x, 0, split);
  columns = product(x, split, x.rank());
  row_dims = joined(0, split, RowPart::row);
  column_dims = joined(split, x.rank(), RowPart::column);
  vector = widest;
  while (vector > 1 && !steps_by(vector)) vector /= 2;
}

/// Dims [first, end) of x, innermost last, without those of extent 1; neighbours become one where
/// every whole tensor, and every one that is `other`, steps through them evenly.
std::vector<NormRows::Joined> NormRows::joined(int first, int end, RowPart other) const {
  const Dims& x = sizes_.layout(members_.front().id).dims;
  std::vector<Joined> result;  // innermost first, until the end
  for (int d = end - 1; d >= first; --d) {
    if (x[d] == 1) continue;
    const auto follows = [&](const Member& member) {
      const Dims& strides = sizes_.layout(member.id).strides;
      const RowPart part = member.part == RowPart::channel ? RowPart::row : member.part;
      return (part != RowPart::whole && part != other) ||
             strides[d] == strides[result.back().dim] * result.back().extent;
    };
    if (!result.empty() && std::all_of(members_.begin(), members_.end(), follows)) {
      result.back().extent *= x[d];
    } else {
      result.push_back({d, x[d]});
    }
  }
  std::reverse(result.begin(), result.end());
  return result;
}

/// Whether runs of `width` columns lie together, and begin on as many elements, in every tensor.
bool NormRows::steps_by(int width) const {
  if (columns % width != 0 || column_dims.size() != 1) return false;
  return std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    if (member.part == RowPart::row || member.part == RowPart::channel) return true;
    const Dims& strides = sizes_.layout(member.id).strides;
    return strides[column_dims[0].dim] == 1 &&
           (member.part == RowPart::column ||
            std::all_of(row_dims.begin(), row_dims.end(),
                        [&](const Joined& one) { return strides[one.dim] % width == 0; }));
  });
}

}  // namespace heddle::problem
