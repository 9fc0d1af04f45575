// What a compiled kernel is known by, and how it is described where it is kept: in the cache on
// disk, in the archive of a package.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/kernel_unit.h"

namespace heddle::engine::cuda {

inline constexpr size_t kDigestDigits = 32;

/// All that decides the machine code: two requests with equal texts get the same kernel.
struct KernelKey {
  std::string text;
  /// kDigestDigits hexadecimal digits of a hash of `text`.
  std::string digest() const;
};

KernelKey kernel_key(const std::string& source, const std::string& architecture,
                     const CompilerVersion& version);

uint64_t checksum(std::span<const char> bytes);

/// A text that stands beside the machine code of `key`: what it was made for, and from what.
std::string entry_text(const KernelKey& key, const std::string& name, const UnitSummary& made_for,
                       std::span<const char> image);
/// Fails, with what is wrong, unless `text` says that `image` is whole and was made from `key`.
Status check_entry(std::string_view text, std::span<const char> image, const KernelKey& key);

/// What an entry's text says for people. It may be damaged, or anybody's: nothing in it is what a
/// terminal might not print.
struct EntryWords {
  std::string name, architecture;  ///< empty of a damaged one
  UnitSummary made_for;
  bool outdated = false;  ///< made from other device code than this library's, which never asks
};
EntryWords words_of_entry(std::string_view text);

}  // namespace heddle::engine::cuda
