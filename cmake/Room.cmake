# A room is a folder of src/: every .cpp in it makes one static library, heddle_<name>.
# DEPENDS lists the rooms (and libraries) it may include; nothing else is on its include path
# by accident because every room's public dependencies are spelled out here.
function(heddle_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(sources)
    add_library(heddle_${name} STATIC ${sources})
    target_include_directories(heddle_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(heddle_${name} PUBLIC ${ROOM_DEPENDS})
    heddle_precompiled(heddle_${name} heddle_core ${HEDDLE_PRECOMPILED})
  else()
    add_library(heddle_${name} INTERFACE)
    target_include_directories(heddle_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(heddle_${name} INTERFACE ${ROOM_DEPENDS})
  endif()
endfunction()

# ctest starts a GoogleTest program for each of its tests; with sanitizers in or by an emulator, where a start takes longer
# than most tests, four times, for a quarter of its tests each.
function(heddle_add_tests program)
  if(NOT HEDDLE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    gtest_discover_tests(${program} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
    return()
  endif()
  foreach(quarter RANGE 3)
    add_test(NAME ${program}.${quarter} COMMAND ${program} --gtest_brief=1)
    set_tests_properties(${program}.${quarter} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${quarter}")
  endforeach()
endfunction()

# Every *_test.cpp of a tests/ folder makes one GoogleTest program, <folder>_tests.
function(heddle_tests name)
  cmake_parse_arguments(TESTS "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_tests ${sources})
  target_include_directories(${name}_tests PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name}_tests PRIVATE ${TESTS_DEPENDS} GTest::gtest_main)
  # Their own checks run once each: with fewer optimizations than what they call has, they take a third less to compile.
  set(optimization -O1)
  if(HEDDLE_SANITIZE)
    set(optimization -O0)
  endif()
  target_compile_options(${name}_tests PRIVATE ${optimization})
  heddle_precompiled(${name}_tests core_tests ${HEDDLE_PRECOMPILED} <gtest/gtest.h>)
  heddle_add_tests(${name}_tests)
endfunction()

# A program that ctest does not run: under sanitizers there is no use for it.
function(heddle_unless_sanitized program)
  if(HEDDLE_SANITIZE)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()
