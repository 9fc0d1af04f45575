// Files as the kernel cache needs them: nothing throws, nothing waits, nothing is read that no
// kernel could be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/status.h"

namespace heddle::engine::cuda {

/// Writes a new file and waits until it is on the disk.
Status write_synced(const std::filesystem::path& path, const void* data, size_t size);
/// Waits until the names in a folder are on the disk.
void sync_folder(const std::filesystem::path& folder);
/// A file of at most kMostFileBytes.
Result<std::vector<char>> read_all(const std::filesystem::path& path);
/// Whether read_all would read it.
bool is_file(const std::filesystem::path& path);
/// What lies in a folder; of one that vanishes meanwhile, a part.
std::vector<std::filesystem::path> children(const std::filesystem::path& folder);
int64_t folder_bytes(const std::filesystem::path& folder);
/// Seconds since the epoch; 0 of what is not there.
int64_t modified(const std::filesystem::path& path);

/// No kernel comes near: a larger file is not read into memory.
inline constexpr int64_t kMostFileBytes = int64_t{1} << 28;

}  // namespace heddle::engine::cuda
