#include "engine/cuda/shared_object.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

namespace heddle::engine::cuda {

Result<SharedObject> SharedObject::open(std::string_view what, std::span<const std::string> names) {
  std::string missing, broken;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))
      return SharedObject(handle, name);
    const char* said = dlerror();
    const std::string complaint = said ? said : "unknown error";
    // Not its own name: something it needs is missing.
    const bool is_missing =
        complaint.starts_with(name) && complaint.ends_with(std::strerror(ENOENT));
    (is_missing ? missing : broken) = complaint;
  }
  // One that is there and does not load says more than those that are not there.
  return error(Code::cuda_api_failed, "{} could not be loaded (tried {}): {}", what,
               fmt::join(names, ", "), broken.empty() ? missing : broken);
}

void* SharedObject::find(const char* symbol) const { return dlsym(handle_, symbol); }

void SharedObject::open_neighbour(const std::string& file) const {
  std::array<char, PATH_MAX> folder{};
  if (dlinfo(handle_, RTLD_DI_ORIGIN, folder.data()) == 0)
    dlopen(fmt::format("{}/{}", folder.data(), file).c_str(), RTLD_NOW | RTLD_LOCAL);
}

std::filesystem::path own_file() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  Dl_info self{};
  const bool found = dladdr(reinterpret_cast<void*>(&own_file), &self) != 0 && self.dli_fname;
  // A program that was found by PATH is called by its name alone.
  const fs::path file = found && std::strchr(self.dli_fname, '/')
                            ? fs::path(self.dli_fname)
                            : fs::read_symlink("/proc/self/exe", ignored);
  return fs::weakly_canonical(file, ignored);
}

}  // namespace heddle::engine::cuda
