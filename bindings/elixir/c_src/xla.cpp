#include "xla.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace heddle::elixir {
namespace {

Error refused(std::string sentence) { return {HEDDLE_HANDLE_ERROR, std::move(sentence)}; }

}  // namespace

std::optional<Error> register_xla(const std::string& library) {
  // XLA refuses a name that it has.
  static std::mutex mutex;
  static auto& known = *new std::map<const XLA_FFI_Api*, bool>;
  const std::lock_guard lock(mutex);
  // Only what is loaded: another copy of XLA would be none that runs programs.
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!loaded) {
    return refused("There is no XLA to register with: " + library +
                   " is not loaded, expected EXLA's NIF to be.");
  }
  using GetApi = const XLA_FFI_Api* (*)();
  const auto get_api = reinterpret_cast<GetApi>(dlsym(loaded, "XLA_FFI_GetApi"));
  dlclose(loaded);  // whoever loaded it keeps it
  if (!get_api) {
    return refused(library + " has no XLA_FFI_GetApi, expected an XLA with typed custom calls.");
  }
  const XLA_FFI_Api* const api = get_api();
  if (known[api]) return std::nullopt;
  if (heddle_xla_register_all(api) != 0) return last_error(HEDDLE_HANDLE_ERROR);
  known[api] = true;
  return std::nullopt;
}

}  // namespace heddle::elixir
