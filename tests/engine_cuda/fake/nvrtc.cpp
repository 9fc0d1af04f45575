// A compiler that makes a few bytes of anything.
//   FAKE_NVRTC_LOG      a file that grows by a byte a compilation
//   FAKE_NVRTC_FAILS    set: it refuses
//   FAKE_NVRTC_SLOW     set: it takes a while
//   FAKE_NVRTC_AT_ONCE  how many compilations must be under way before one ends; it fails if that
//                       does not happen for long
//   FAKE_NVRTC_VERSION  what it says it is (12040 is 12.4), else 13000
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

constexpr int kSuccess = 0, kCompilationFailed = 6;
constexpr int kArchitectures[] = {80, 90, 120};
constexpr char kLog[] = "kernel.cu(1): error: not today";
constexpr char kCubin[] = "no machine code";

/// Whether as many have begun, in this process, as must be under way together.
bool others_begin() {
  static std::atomic<int> begun = 0;
  const char* text = std::getenv("FAKE_NVRTC_AT_ONCE");
  const int wanted = text ? std::atoi(text) : 0;
  if (wanted == 0) return true;
  ++begun;
  for (int tick = 0; tick < 20000 && begun < wanted; ++tick) ::usleep(1000);
  return begun >= wanted;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  const char* text = std::getenv("FAKE_NVRTC_VERSION");
  const int version = text ? std::atoi(text) : 13000;
  *major = version / 1000;
  *minor = version % 1000 / 10;
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
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  static int some;
  *program = &some;
  return kSuccess;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  if (const char* path = std::getenv("FAKE_NVRTC_LOG")) {
    const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || ::write(file, "x", 1) != 1) return kCompilationFailed;
    ::close(file);
  }
  if (std::getenv("FAKE_NVRTC_SLOW")) ::usleep(50000);
  return std::getenv("FAKE_NVRTC_FAILS") || !others_begin() ? kCompilationFailed : kSuccess;
}
int nvrtcGetProgramLogSize(void*, size_t* size) {
  *size = sizeof kLog;
  return kSuccess;
}
int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, kLog, sizeof kLog);
  return kSuccess;
}
int nvrtcGetCUBINSize(void*, size_t* size) {
  *size = sizeof kCubin;
  return kSuccess;
}
int nvrtcGetCUBIN(void*, char* cubin) {
  std::memcpy(cubin, kCubin, sizeof kCubin);
  return kSuccess;
}
int nvrtcDestroyProgram(void** program) {
  *program = nullptr;
  return kSuccess;
}

}  // extern "C"
