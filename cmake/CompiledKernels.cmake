# The archive of kernels that a package carries: those of common graphs, compiled by the NVRTC that was named. It needs no
# GPU. Without a compiler the package is complete but for it: kernels are then compiled where they are first used.
set(HEDDLE_KERNEL_COMPILER "" CACHE FILEPATH "libnvrtc.so: the kernels of common graphs are compiled by it; empty: none are")
if(HEDDLE_KERNEL_COMPILER)
  # Where the library looks, in a build tree as in an installed one.
  set(archive ${PROJECT_BINARY_DIR}/share/heddle/compiled_kernels)
  add_custom_command(
    OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E env HEDDLE_NVRTC=${HEDDLE_KERNEL_COMPILER} HEDDLE_CACHE_DIR=
            $<TARGET_FILE:heddle> prebuild --arch sm_80 --arch sm_90a --archive ${archive}
    DEPENDS heddle
    COMMENT "Compiling the kernels of common graphs")
  add_custom_target(compiled_kernels ALL DEPENDS ${archive})
  if(HEDDLE_WHEEL)
    install(FILES ${archive} DESTINATION share/heddle COMPONENT wheel)
  else()
    install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_DATADIR}/heddle)
  endif()
else()
  message(STATUS "HEDDLE_KERNEL_COMPILER names no NVRTC: no kernels are compiled beforehand")
  add_custom_target(compiled_kernels)
endif()
