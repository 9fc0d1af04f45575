# Files of a folder are compiled ten at a time: nine tenths of a file's time go to headers, and joined files share them.
# -DHEDDLE_JOIN=OFF compiles each by itself, for who edits one file many times.
option(HEDDLE_JOIN "Compile sources of a folder ten at a time" ON)
if(HEDDLE_JOIN)
  find_package(Python3 COMPONENTS Interpreter)
  if(NOT Python3_FOUND)
    message(STATUS "There is no Python to join sources with: each is compiled by itself")
  endif()
endif()

# heddle_join(variable root) makes of the list of files in `variable` the list of what is compiled in their stead. Joined files
# include them relative to `root`, which is on the include path, so that a compiler cache knows them in any checkout.
function(heddle_join variable root)
  if(NOT HEDDLE_JOIN OR NOT Python3_FOUND)
    return()
  endif()
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/join_sources.py ${root}
                          ${CMAKE_CURRENT_BINARY_DIR}/${variable} 10 ${${variable}}
                  OUTPUT_VARIABLE joined OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" joined "${joined}")
  set(${variable} ${joined} PARENT_SCOPE)
endfunction()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/join_sources.py)
