// Functions of the NVIDIA driver that Heddle's library calls for itself alone, found by name.
#pragma once

#include <dlfcn.h>

#include <string>

#include "heddle/frontend/error.h"

namespace heddle::frontend::detail {

/// Calls the driver's function of this name, whose parameters have the arguments' types.
template <class... Arguments>
error_t call_driver(const char* function, Arguments... arguments) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return {error_code_t::CUDA_API_FAILED, "There is no NVIDIA driver, libcuda.so.1."};
  void* const address = dlsym(driver, function);
  if (!address) {
    return {error_code_t::CUDA_API_FAILED,
            std::string("The driver has no ") + function + ", expected one of CUDA 12.3 or later."};
  }
  const int failure = reinterpret_cast<int (*)(Arguments...)>(address)(arguments...);
  if (failure == 0) return {};
  return {error_code_t::CUDA_API_FAILED,
          std::string(function) + " failed with CUDA error " + std::to_string(failure) + "."};
}

}  // namespace heddle::frontend::detail
