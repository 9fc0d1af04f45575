#include "core/environment.h"

#include <cstdlib>

namespace heddle::environment {
namespace {

constexpr Variable kVariables[] = {
    {"HEDDLE_DEVICE", "cpu, cuda",
     "where programs run that name no device, in place of the GPU where there is one"},
    {"HEDDLE_CPU_ISA", "portable, avx2, avx512, avx512_bf16, amx",
     "the instruction set of the CPU engine, in place of the one that is best here"},
    {"HEDDLE_NVRTC", "a library's name or path", "the compiler of the CUDA engine's kernels"},
    {"HEDDLE_KERNELS", "a file, or nothing",
     "kernels compiled beforehand, in place of those installed with the library; nothing: none"},
    {"HEDDLE_CACHE_DIR", "a folder, or nothing",
     "where compiled kernels are kept; nothing: nowhere"},
    {"HEDDLE_CACHE_BYTES", "a number", "how much of them is kept"},
    {"HEDDLE_DISABLE_FLASH_ATTENTION", "0, 1", "1: no attention by the paths flash and decode"},
    {"ORT_DISABLE_FLASH_ATTENTION", "0, 1", "the same, by ONNX Runtime's name"},
    {"ORT_GQA_DISABLE_FLASH_ATTENTION", "0, 1",
     "the same, by the name that ONNX Runtime's kernel for a CPU reads"},
    {"HEDDLE_DISABLE_FLASH_DECODE", "0, 1", "1: no attention by the path decode"},
    {"ORT_DISABLE_FLASH_DECODE", "0, 1", "the same, by ONNX Runtime's name"},
    {"HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION", "0, 1",
     "1: no attention by the path memory_efficient"},
    {"ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION", "0, 1", "the same, by ONNX Runtime's name"},
    {"HEDDLE_GQA_DEBUG", "0, 1",
     "1: a node of ONNX Runtime's prints on standard error which path serves it, and why"},
    {"ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO", "0, 1", "the same, by ONNX Runtime's name"},
};

}  // namespace

std::span<const Variable> variables() { return kVariables; }

const char* value_of(const char* name) { return std::getenv(name); }

Result<bool> is_on(const char* name) {
  const char* const value = value_of(name);
  const std::string_view text = value ? value : "";
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  return error(Code::invalid_value, "{} is '{}', expected 0 or 1", name, text);
}

}  // namespace heddle::environment
