# find_package(heddle) gives heddle::heddle, the library with its C and C++ headers; it needs no other package.
include(${CMAKE_CURRENT_LIST_DIR}/heddle-targets.cmake)
