// What takes scores to exponents of 2 by one multiply-add each (dot_softmax.cuh). Plain numbers:
// host and device share them.
#pragma once

namespace heddle::attention {

struct DotUnits {
  float scale = 1;   ///< of a score, in log2 units; above 0
  float power = 1;   ///< the power of two nearest to it
  float slack = 0;   ///< how far a reference lags, in units of scores; finite
  float unused = 0;  ///< parts of arguments are multiples of 8 bytes
};

}  // namespace heddle::attention
