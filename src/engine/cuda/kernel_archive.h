// Kernels compiled when a package was built, which it carries in one file: a first plan of what
// most programs ask for compiles nothing, and needs no NVRTC.
//
// The file is a header, an index of fixed size, then texts and machine code, which are read when
// they are asked for. Nothing in it is believed: places are held to the file's size, and a kernel
// is served if its text says that it is whole and was made from the very text that is asked for
// (kernel_entry.h), the device code of this library and the flags included. A cubin is complete: no
// compiler of this machine has a part in it, so the file says which NVRTC made all of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/cuda/kernel_entry.h"

namespace heddle::engine::cuda {

class KernelArchive {
 public:
  /// Fails, with what is wrong, if the file is none, or cut short.
  static Result<KernelArchive> open(const std::filesystem::path& path);

  /// Its kernel for a unit's source.
  Result<Cubin> find(const std::string& source, const std::string& architecture) const;

  /// What one kernel is, for people; of a damaged one nothing.
  std::vector<EntryWords> list() const;

  const std::filesystem::path& path() const { return path_; }
  /// The compiler that made it, without its library.
  const CompilerVersion& made_by() const { return made_by_; }

 private:
  struct Part {
    uint64_t at = 0, bytes = 0;
  };
  struct Place {
    std::string digest;
    Part text, image;
  };
  explicit KernelArchive(std::filesystem::path path) : path_(std::move(path)) {}
  Result<std::vector<char>> read(const Part& part) const;

  std::filesystem::path path_;
  std::shared_ptr<const int> file_;  ///< a descriptor, closed with the last copy
  CompilerVersion made_by_;
  std::vector<Place> places_;  ///< by digest
};

/// A kernel to be put into an archive.
struct ArchivedKernel {
  KernelUnit unit;
  std::string architecture;
  Cubin cubin;
};
/// Writes the file anew, whole or not at all. Each kernel is to be there once.
Status write_archive(const std::filesystem::path& path, std::span<const ArchivedKernel> kernels,
                     const CompilerVersion& made_by);

/// The archive that was installed with this library (../share/heddle/compiled_kernels, seen from
/// where it lies), or the one that HEDDLE_KERNELS names; else why there is none. Opened once.
const Result<KernelArchive>& installed_archive();

}  // namespace heddle::engine::cuda
