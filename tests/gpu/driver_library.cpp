#include "gpu/driver_library.h"

#include <array>
#include <string>

namespace heddle::testing {

Result<engine::cuda::SharedObject> driver_library() {
  const std::array<std::string, 1> names{"libcuda.so.1"};
  return engine::cuda::SharedObject::open("the NVIDIA driver", names);
}

Status check(engine::cuda::CuResult result, const char* call) {
  return engine::cuda::driver()->check(result, call);
}

}  // namespace heddle::testing
