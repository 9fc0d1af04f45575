# The standard library's headers and fmt's, which take half of a file's time to compile, are read once: heddle_core reads
# them for all that is compiled as it is, core_tests those and GoogleTest's for all tests. Nothing may rely on them being
# there: clang-tidy reads each file without.
set(HEDDLE_PRECOMPILED
    <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory> <optional> <set> <span> <string>
    <string_view> <unordered_map> <utility> <variant> <vector> <fmt/format.h>)

# heddle_precompiled(TARGET OWNER HEADERS...): TARGET takes what OWNER precompiled, or is the owner.
function(heddle_precompiled target owner)
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
