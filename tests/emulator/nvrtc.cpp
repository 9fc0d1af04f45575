// NVRTC's interface to the machine's own compiler: a kernel's sources, with ptx/ beside this file
// in place of kernels/ptx, become a shared object, which libcuda.cpp loads.
//   EMULATOR_CXX            the compiler, else g++
//   EMULATOR_KEEPS_SOURCES  set: what is compiled stays in the folder for temporary files
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace files = std::filesystem;

constexpr int kSuccess = 0, kCompilationFailed = 6;
constexpr int kArchitectures[] = {80, 90};

struct Program {
  std::string source, log, image;
  std::vector<std::pair<std::string, std::string>> headers;  ///< name and text
};

std::string text_of(const files::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write(const files::path& path, const std::string& text) {
  files::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// The launch's memory is a pointer here.
std::string with_dynamic_shared(const std::string& text) {
  static const std::regex declaration(
      R"(extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];)");
  return std::regex_replace(text, declaration,
                            "$1* const $2 = reinterpret_cast<$1*>("
                            "::heddle::emulator::dynamic_shared());");
}

/// What libcuda.cpp asks a module for.
std::string entries_of(const std::string& source) {
  static const std::regex kernel(
      R"re(extern "C" __global__ void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\()re");
  std::string entries =
      "\nthread_local unsigned char heddle_static_memory[16];\n"
      "extern \"C\" unsigned char* emulator_static_memory() { return heddle_static_memory; }\n";
  for (std::sregex_iterator at(source.begin(), source.end(), kernel), end; at != end; ++at) {
    const std::string name = (*at)[1];
    entries += "extern \"C\" void emulator_call_" + name +
               "(void** parameters) { ::heddle::emulator::call(" + name + ", parameters); }\n" +
               "extern \"C\" const unsigned* emulator_sizes_" + name +
               "() { return ::heddle::emulator::sizes_of(" + name + "); }\n";
  }
  return entries;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return kSuccess;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}
int nvrtcGetSupportedArchs(int* architectures) {
  std::copy(std::begin(kArchitectures), std::end(kArchitectures), architectures);
  return kSuccess;
}
const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }

int nvrtcCreateProgram(Program** program, const char* source, const char*, int count,
                       const char* const* headers, const char* const* names) {
  *program = new Program{source, {}, {}, {}};
  for (int n = 0; n < count; ++n) (*program)->headers.emplace_back(names[n], headers[n]);
  return kSuccess;
}

int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  std::string place = (files::temp_directory_path() / "emulated-kernel-XXXXXX").string();
  if (!::mkdtemp(place.data())) return kCompilationFailed;
  const files::path directory = place, own = EMULATOR_SOURCES;
  for (const auto& [name, text] : program->headers) {
    const files::path instead = own / name;
    write(directory / name, with_dynamic_shared(files::exists(instead) ? text_of(instead) : text));
  }
  write(directory / "kernel.cpp", "#include \"prelude.h\"\n" +
                                      with_dynamic_shared(program->source) +
                                      entries_of(program->source));
  int architecture = 0;
  for (int n = 0; n < count; ++n)
    (void)std::sscanf(options[n], "--gpu-architecture=sm_%d", &architecture);
  const char* const compiler = std::getenv("EMULATOR_CXX");
  // Without -fno-gnu-unique static variables of equal names are one in all kernels.
  const std::string command = std::string(compiler ? compiler : "g++") +
                              " -std=c++20 -O1 -march=native -ffp-contract=off "
                              "-fno-strict-aliasing -fno-gnu-unique -w -Wno-psabi -fPIC -shared"
                              " -D__CUDA_ARCH__=" +
                              std::to_string(architecture * 10) + " -I" + place + " -I" +
                              own.string() + " -o " + place + "/kernel.so " + place +
                              "/kernel.cpp -L" EMULATOR_LIBRARIES " -l:libcuda.so.1 >" + place +
                              "/log 2>&1";
  const int outcome = std::system(command.c_str());
  program->log = text_of(directory / "log");
  program->image = text_of(directory / "kernel.so");
  if (!std::getenv("EMULATOR_KEEPS_SOURCES")) files::remove_all(directory);
  return outcome == 0 ? kSuccess : kCompilationFailed;
}

int nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return kSuccess;
}
int nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}
int nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = program->image.size();
  return kSuccess;
}
int nvrtcGetCUBIN(Program* program, char* image) {
  std::memcpy(image, program->image.data(), program->image.size());
  return kSuccess;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}

}  // extern "C"
