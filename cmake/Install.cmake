# What `cmake --install` puts below a prefix: the libraries, the headers (C, and C++ over C), the command, the licence, and
# what find_package(heddle) and pkg-config read. The tree may be moved: they say places relative to themselves.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/heddle)

install(TARGETS heddle_shared EXPORT heddle LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS heddle_onnxruntime_microsoft heddle_onnxruntime_onnx LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS heddle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/heddle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The target heddle::heddle. Before 1.0 a program takes the minor version it was written for (docs/abi.md).
install(EXPORT heddle NAMESPACE heddle:: FILE heddle-targets.cmake DESTINATION ${package})
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatible SameMinorVersion)
else()
  set(compatible SameMajorVersion)
endif()
write_basic_package_version_file(heddle-config-version.cmake COMPATIBILITY ${compatible})
install(FILES cmake/heddle-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/heddle-config-version.cmake DESTINATION ${package})

file(RELATIVE_PATH HEDDLE_INCLUDE_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/heddle.pc.in heddle.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/heddle.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
