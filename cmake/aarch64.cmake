# Linux on aarch64 by Debian's cross compiler, tests by an emulator of a process (make aarch64). Headers alone, JSON's and
# CLI11's, are this machine's own; libraries are those that scripts/unpack-debian unpacked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(libraries ${CMAKE_CURRENT_LIST_DIR}/../build-aarch64/debian)
set(CMAKE_PREFIX_PATH ${libraries}/usr)
set(CMAKE_BUILD_RPATH ${libraries}/usr/lib/aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
