#include "engine/cuda/compiler.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <utility>

#include "core/environment.h"
#include "engine/cuda/cuda_types.h"
#include "engine/cuda/kernel_sources.h"
#include "engine/cuda/shared_object.h"

namespace heddle::engine::cuda {
namespace {

using NvrtcResult = int;

struct Nvrtc {
  CompilerVersion version;
  std::vector<int> architectures;  ///< compute capabilities it compiles for, ascending
  const char* (*get_error_string)(NvrtcResult);
  NvrtcResult (*create_program)(NvrtcProgram*, const char* source, const char* name,
                                int header_count, const char* const* headers,
                                const char* const* include_names);
  NvrtcResult (*compile_program)(NvrtcProgram, int option_count, const char* const* options);
  NvrtcResult (*get_log_size)(NvrtcProgram, size_t*);
  NvrtcResult (*get_log)(NvrtcProgram, char*);
  NvrtcResult (*get_cubin_size)(NvrtcProgram, size_t*);
  NvrtcResult (*get_cubin)(NvrtcProgram, char*);
  NvrtcResult (*destroy_program)(NvrtcProgram*);

  Status check(NvrtcResult result, const char* call) const {
    if (result == 0) return {};
    return error(Code::nvrtc_compilation_failed, "{} failed: {}", call, get_error_string(result));
  }

  /// A GPU may be newer than its compiler, or older than a compiler goes back.
  Status check_architecture(const std::string& name) const {
    const auto is_named = [&name](int one) {
      return name == fmt::format("sm_{}", one) || name == fmt::format("sm_{}a", one);
    };
    if (std::any_of(architectures.begin(), architectures.end(), is_named)) return {};
    return error(
        Code::nvrtc_compilation_failed,
        "{} is NVRTC {}.{}, which compiles for {}, not for {}: HEDDLE_NVRTC chooses another",
        version.library, version.major, version.minor,
        fmt::format("sm_{}", fmt::join(architectures, ", sm_")), name);
  }
};

// Tensor maps changed by kernels, for sequences of their own lengths, came with PTX 8.3.
constexpr std::pair kOldest{12, 3};

const char* chosen_name() {
  const char* name = environment::value_of("HEDDLE_NVRTC");
  return name && *name ? name : nullptr;
}

std::vector<std::string> candidate_names() {
  std::vector<std::string> names;
  if (const char* name = chosen_name()) return {name};
  for (const char* name :
       {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"}) {
    names.emplace_back(name);
  }
  // NVIDIA's wheels lie beside ours, where no loader looks: packages/heddle/lib/libheddle.so.
  const std::filesystem::path packages = own_file().parent_path().parent_path().parent_path();
  for (const char* name :
       {"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"}) {
    if (!packages.empty()) names.push_back(packages / name);
  }
  return names;
}

Result<Nvrtc> load_nvrtc() {
  const std::vector<std::string> names = candidate_names();
  const Result<SharedObject> opened =
      SharedObject::open("NVRTC, the CUDA run-time compiler,", names);
  if (!opened) {
    return error(opened.status().code(), "{}; HEDDLE_NVRTC names {}", opened.status().message(),
                 chosen_name() ? "it" : "one that lies elsewhere");
  }
  const SharedObject& library = *opened;
  Nvrtc nvrtc{};
  NvrtcResult (*get_version)(int*, int*) = nullptr;
  NvrtcResult (*count_architectures)(int*) = nullptr;
  NvrtcResult (*get_architectures)(int*) = nullptr;
  HEDDLE_TRY(bind(library, "nvrtcVersion", get_version));
  HEDDLE_TRY(bind(library, "nvrtcGetNumSupportedArchs", count_architectures));
  HEDDLE_TRY(bind(library, "nvrtcGetSupportedArchs", get_architectures));
  HEDDLE_TRY(bind(library, "nvrtcGetErrorString", nvrtc.get_error_string));
  HEDDLE_TRY(bind(library, "nvrtcCreateProgram", nvrtc.create_program));
  HEDDLE_TRY(bind(library, "nvrtcCompileProgram", nvrtc.compile_program));
  HEDDLE_TRY(bind(library, "nvrtcGetProgramLogSize", nvrtc.get_log_size));
  HEDDLE_TRY(bind(library, "nvrtcGetProgramLog", nvrtc.get_log));
  HEDDLE_TRY(bind(library, "nvrtcGetCUBINSize", nvrtc.get_cubin_size));
  HEDDLE_TRY(bind(library, "nvrtcGetCUBIN", nvrtc.get_cubin));
  HEDDLE_TRY(bind(library, "nvrtcDestroyProgram", nvrtc.destroy_program));
  HEDDLE_TRY(nvrtc.check(get_version(&nvrtc.version.major, &nvrtc.version.minor), "nvrtcVersion"));
  nvrtc.version.library = library.name();
  if (std::pair(nvrtc.version.major, nvrtc.version.minor) < kOldest) {
    return error(Code::nvrtc_compilation_failed,
                 "{} is NVRTC {}.{}; Heddle needs {}.{} or newer: HEDDLE_NVRTC chooses another",
                 library.name(), nvrtc.version.major, nvrtc.version.minor, kOldest.first,
                 kOldest.second);
  }
  int count = 0;
  HEDDLE_TRY(nvrtc.check(count_architectures(&count), "nvrtcGetNumSupportedArchs"));
  nvrtc.architectures.resize(static_cast<size_t>(count));
  HEDDLE_TRY(nvrtc.check(get_architectures(nvrtc.architectures.data()), "nvrtcGetSupportedArchs"));
  // NVRTC opens it by name at its first compilation, and does not look where itself lies.
  library.open_neighbour(
      fmt::format("libnvrtc-builtins.so.{}.{}", nvrtc.version.major, nvrtc.version.minor));
  return nvrtc;
}

const Result<Nvrtc>& nvrtc() {
  static const Result<Nvrtc> loaded = load_nvrtc();
  return loaded;
}

// Owns an NVRTC program for the length of one compilation.
class Program {
 public:
  explicit Program(const Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
  ~Program() {
    if (program_) nvrtc_.destroy_program(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  NvrtcProgram* address() { return &program_; }
  NvrtcProgram get() const { return program_; }

 private:
  const Nvrtc& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

}  // namespace

Result<CompilerVersion> compiler_version() {
  if (!nvrtc().is_ok()) return nvrtc().status();
  return nvrtc()->version;
}

std::vector<std::string> compile_flags(const std::string& architecture) {
  // -v brings the assembler's resource lines into the log; the local-memory warning catches stack
  // frames that spill counts miss (a register array indexed at run time).
  return {"--gpu-architecture=" + architecture, "-std=c++20", "-default-device",
          "--ptxas-options=-v", "--ptxas-options=--warn-on-local-memory-usage"};
}

Result<Cubin> compile(const std::string& source, const std::string& name,
                      const std::string& architecture) {
  if (!nvrtc().is_ok()) return nvrtc().status();
  const Nvrtc& api = *nvrtc();
  HEDDLE_TRY(api.check_architecture(architecture));
  std::vector<const char*> headers, header_names;
  for (const KernelSource& file : kernel_sources()) {
    headers.push_back(file.text);
    header_names.push_back(file.path);
  }
  Program program(api);
  HEDDLE_TRY(api.check(
      api.create_program(program.address(), source.c_str(), name.c_str(),
                         static_cast<int>(headers.size()), headers.data(), header_names.data()),
      "nvrtcCreateProgram"));
  const std::vector<std::string> flags = compile_flags(architecture);
  std::vector<const char*> options;
  for (const std::string& flag : flags) options.push_back(flag.c_str());
  const NvrtcResult outcome =
      api.compile_program(program.get(), static_cast<int>(options.size()), options.data());

  Cubin cubin;
  size_t size = 0;
  HEDDLE_TRY(api.check(api.get_log_size(program.get(), &size), "nvrtcGetProgramLogSize"));
  cubin.log.resize(size);
  HEDDLE_TRY(api.check(api.get_log(program.get(), cubin.log.data()), "nvrtcGetProgramLog"));
  while (!cubin.log.empty() && cubin.log.back() == '\0') cubin.log.pop_back();
  if (outcome != 0) {
    return error(Code::nvrtc_compilation_failed, "kernel {} did not compile for {} ({}):\n{}", name,
                 architecture, api.get_error_string(outcome), cubin.log);
  }
  HEDDLE_TRY(api.check(api.get_cubin_size(program.get(), &size), "nvrtcGetCUBINSize"));
  // A virtual architecture (compute_*) compiles "successfully" to nothing.
  if (size == 0) {
    return error(Code::nvrtc_compilation_failed, "kernel {} gave no machine code for {}", name,
                 architecture);
  }
  cubin.image.resize(size);
  HEDDLE_TRY(api.check(api.get_cubin(program.get(), cubin.image.data()), "nvrtcGetCUBIN"));
  cubin.kernels = parse_resources(cubin.log);
  return cubin;
}

std::vector<KernelResources> parse_resources(const std::string& log) {
  static const std::regex entry(R"(Compiling entry function '([^']+)')");
  static const std::regex frame(
      R"((\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads)");
  static const std::regex used(R"(Used (\d+) registers)");
  static const std::regex shared(R"((\d+) bytes smem)");
  std::vector<KernelResources> kernels;
  size_t start = 0;
  while (start < log.size()) {
    const size_t end = std::min(log.find('\n', start), log.size());
    const std::string line = log.substr(start, end - start);
    start = end + 1;
    std::smatch match;
    if (std::regex_search(line, match, entry)) kernels.push_back({.kernel = match[1]});
    if (kernels.empty()) continue;
    KernelResources& kernel = kernels.back();
    if (std::regex_search(line, match, frame)) {
      kernel.stack_bytes = std::stoll(match[1]);
      kernel.spill_store_bytes = std::stoll(match[2]);
      kernel.spill_load_bytes = std::stoll(match[3]);
    }
    if (std::regex_search(line, match, used)) kernel.registers = std::stoi(match[1]);
    if (std::regex_search(line, match, shared)) kernel.shared_bytes = std::stoll(match[1]);
  }
  return kernels;
}

}  // namespace heddle::engine::cuda
