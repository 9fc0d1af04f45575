// Arrays in NumPy's .npy files (format versions 1.0 to 3.0).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"
#include "core/status.h"

namespace heddle::tools {

/// A dense row-major array in memory.
struct Array {
  DataType dtype = DataType::f32;
  Dims dims;
  std::vector<std::byte> data;
};

/// Of one file, and of all the tensors of a graph that is run.
inline constexpr int64_t kMostArrayBytes = int64_t{16} << 30;

/// Reads a .npy file. bf16 and the fp8 types, which NumPy lacks, are stored as ml_dtypes writes
/// them: raw bytes with the descriptions '<V2' and '<V1'; `raw` says what such bytes are. bf16 may
/// be
/// '<u2' too, its bits. Arrays in Fortran order come back row-major. Failures name the file, the
/// byte where it went wrong, what was found and what is allowed; nothing is allocated before the
/// header's dims are known to fit the file's own size, which may be kMostArrayBytes.
Result<Array> read_npy(const std::string& path, DataType raw = DataType::bf16);

/// Writes the array as version 1.0 (through a temporary file beside `path`, renamed when whole).
Status write_npy(const Array& array, const std::string& path);

}  // namespace heddle::tools
