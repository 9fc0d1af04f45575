#include "engine/cuda/shared_object.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <array>
#include <climits>

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

void SharedObject::open_neighbour(const std::string& file) const {
  std::array<char, PATH_MAX> folder{};
  if (dlinfo(handle_, RTLD_DI_ORIGIN, folder.data()) == 0)
    dlopen(fmt::format("{}/{}", folder.data(), file).c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace heddle::engine::cuda
