#include "core/packed.h"

namespace heddle {

bool packed_overlaps_itself(Dims dims, const Dims& strides) {
  dims[0] = 1;
  if (dims.rank() == 4 && strides[1] > strides[2]) dims[2] = 1;
  return overlaps_itself(dims, strides);
}

}  // namespace heddle
