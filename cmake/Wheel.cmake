# What a Python wheel carries beside the package: lib/libheddle.so with the libraries it needs that a
# machine may lack, those for ONNX Runtime beside it, and the command in bin/. Everything finds the rest by its own place.
install(TARGETS heddle_shared heddle heddle_onnxruntime_microsoft heddle_onnxruntime_onnx
        RUNTIME_DEPENDENCY_SET wheel_dependencies
        LIBRARY DESTINATION lib COMPONENT wheel NAMELINK_COMPONENT wheel
        RUNTIME DESTINATION bin COMPONENT wheel)
set_target_properties(heddle_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(heddle PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
# A zip file has no links: the library goes in under one name.
set_property(TARGET heddle_shared PROPERTY VERSION)
set_property(TARGET heddle_shared PROPERTY SOVERSION)
install(RUNTIME_DEPENDENCY_SET wheel_dependencies
        PRE_EXCLUDE_REGEXES "^ld-linux" "^libc\\.so" "^libm\\.so" "^libgcc_s" "^libstdc\\+\\+" "^libpthread" "^libdl"
        LIBRARY DESTINATION lib COMPONENT wheel)

# The licences of what is compiled into it or lies beside it, as Debian's packages carry them.
foreach(package libcli11-dev libfmt-dev libprotozero-dev libtbb-dev nlohmann-json3-dev)
  set(licence /usr/share/doc/${package}/copyright)
  if(EXISTS ${licence})
    install(FILES ${licence} DESTINATION licenses RENAME ${package}.txt COMPONENT wheel)
  else()
    message(WARNING "There is no ${licence}: add the licence to the wheel before you pass it on")
  endif()
endforeach()
