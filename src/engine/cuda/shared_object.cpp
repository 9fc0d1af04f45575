#include "engine/cuda/shared_object.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

namespace heddle::engine::cuda {

Result<SharedObject> SharedObject::open(std::string_view what, std::span<const std::string> names) {
  std::string complaint = "nothing to try";
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))
      return SharedObject(handle, name);
    if (const char* said = dlerror()) complaint = said;
  }
  return error(Code::cuda_api_failed, "{} could not be loaded (tried {}): {}", what,
               fmt::join(names, ", "), complaint);
}

void* SharedObject::find(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace heddle::engine::cuda
