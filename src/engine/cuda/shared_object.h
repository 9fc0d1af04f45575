// A shared library opened at run time, so that one binary serves machines with and without a GPU.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "core/status.h"

namespace heddle::engine::cuda {

class SharedObject {
 public:
  /// Opens the first of `names` that loads; `what` names the library in the error sentence, which
  /// lists what was tried and what the loader said of the last.
  static Result<SharedObject> open(std::string_view what, std::span<const std::string> names);

  /// The address of `symbol`, or null if this version of the library lacks it.
  void* find(const char* symbol) const;
  /// Opens `file` of the same folder, if it is there: whoever asks for it by name then gets it.
  void open_neighbour(const std::string& file) const;
  /// The name it was opened under.
  const std::string& name() const { return name_; }

 private:
  SharedObject(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void*
      handle_;  // Never closed: code and callbacks of these libraries live as long as the process.
  std::string name_;
};

/// The library, or the program, that this code lies in.
std::filesystem::path own_file();

/// Sets `function` to `symbol`'s address, or fails with a sentence naming library and symbol.
template <class Function>
Status bind(const SharedObject& library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(library.find(symbol));
  if (function) return {};
  return error(Code::cuda_api_failed, "{} has no {}: it is too old, or another library",
               library.name(), symbol);
}

}  // namespace heddle::engine::cuda
