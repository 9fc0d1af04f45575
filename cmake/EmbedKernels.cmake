# Writes OUTPUT, a C++ file holding every kernels/**/*.cuh as a raw string literal.
# Called as: cmake -DKERNELS=<dir> -DOUTPUT=<file> -P EmbedKernels.cmake
file(GLOB_RECURSE files RELATIVE ${KERNELS} ${KERNELS}/*.cuh ${KERNELS}/*.h)
list(SORT files)
set(entries "")
foreach(file ${files})
  file(READ "${KERNELS}/${file}" text)
  # Files include their neighbours by relative path; NVRTC knows headers by one name only, their
  # path below kernels/.
  cmake_path(GET file PARENT_PATH folder)
  string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
  foreach(include ${includes})
    string(REGEX REPLACE "#include \"(.*)\"" "\\1" target "${include}")
    set(resolved "${folder}/${target}")
    cmake_path(NORMAL_PATH resolved)
    if(EXISTS "${KERNELS}/${resolved}")
      string(REPLACE "${include}" "#include \"${resolved}\"" text "${text}")
    endif()
  endforeach()
  string(LENGTH "${text}" length)
  # A string literal may be limited to 64 KiB by other compilers; adjacent pieces concatenate.
  set(pieces "")
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} 12000 piece)
    string(APPEND pieces "R\"~heddle~(${piece})~heddle~\"\n")
    math(EXPR begin "${begin} + 12000")
  endwhile()
  string(APPEND entries "    {\"${file}\",\n${pieces}},\n")
endforeach()
file(WRITE ${OUTPUT}.new "// Generated from kernels/ by cmake/EmbedKernels.cmake.
#include \"engine/cuda/kernel_sources.h\"

namespace heddle::engine::cuda {
namespace {
constexpr KernelSource kSources[] = {
${entries}};
}  // namespace

std::span<const KernelSource> kernel_sources() { return kSources; }

uint64_t kernel_sources_digest() {
  // FNV-1a over paths and texts.
  uint64_t digest = 14695981039346656037u;
  for (const KernelSource& source : kSources) {
    for (const char* text : {source.path, source.text}) {
      for (const char* c = text; *c; ++c) digest = (digest ^ static_cast<unsigned char>(*c)) * 1099511628211u;
    }
  }
  return digest;
}

}  // namespace heddle::engine::cuda
")
file(COPY_FILE ${OUTPUT}.new ${OUTPUT} ONLY_IF_DIFFERENT)
