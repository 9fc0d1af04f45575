#include "api/late_sizes.h"

#include <algorithm>

namespace heddle::api {

Result<std::shared_ptr<const Executable>> LateSizes::find_or_make(const Executable& planned,
                                                                  std::span<const Shape> shapes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Sized& sized) {
      return std::equal(shapes.begin(), shapes.end(), sized.shapes.begin(), sized.shapes.end());
    });
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      return recent_.front().executable;
    }
  }
  // Made without the lock: executions at other sizes go on, and two at the same new ones may both
  // make theirs.
  HEDDLE_ASSIGN(std::shared_ptr<const Executable> made, planned.resized(shapes));
  std::list<Sized> forgotten;  // freed without the lock as well
  forgotten.push_back({{shapes.begin(), shapes.end()}, made});
  const std::lock_guard lock(mutex_);
  recent_.splice(recent_.begin(), forgotten);
  if (recent_.size() > kCapacity)
    forgotten.splice(forgotten.end(), recent_, std::prev(recent_.end()));
  return made;
}

}  // namespace heddle::api
