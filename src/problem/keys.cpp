#include "problem/keys.h"

#include <cstddef>

namespace heddle::problem {

KeyInterval visible_keys(const std::vector<KeyBound>& bounds, const std::vector<int64_t>& constants,
                         int64_t row, int64_t q_length, int64_t kv_length) {
  KeyInterval keys{0, kv_length};
  for (size_t n = 0; n < bounds.size(); ++n) {
    int64_t at = constants[n];
    switch (bounds[n].anchor) {
      case Anchor::start:
        break;
      case Anchor::kv_end:
        at += kv_length;
        break;
      case Anchor::top_left:
        at += row;
        break;
      case Anchor::bottom_right:
        at += row + kv_length - q_length;
        break;
    }
    if (bounds[n].upper) {
      keys.hi = at < keys.hi ? at : keys.hi;
    } else {
      keys.lo = at > keys.lo ? at : keys.lo;
    }
  }
  return keys;
}

}  // namespace heddle::problem
