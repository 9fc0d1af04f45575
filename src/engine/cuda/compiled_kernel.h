// The machine code of a kernel's unit, wherever it comes from.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "engine/cuda/compiler.h"
#include "engine/cuda/kernel_unit.h"

namespace heddle::engine::cuda {

/// A unit's kernels: from memory, from the archive that was installed, from the disk, or
/// compiled now. NVRTC is loaded for the last two alone. Threads asking for the same kernel compile
/// it once; so do processes, through a lock file that dies with its holder.
Result<std::shared_ptr<const Cubin>> compiled_kernel(const KernelUnit& unit,
                                                     const std::string& architecture);

/// The same without the archive: as this machine's NVRTC compiles it, now or before.
Result<Cubin> compiled_here(const KernelUnit& unit, const std::string& architecture);

}  // namespace heddle::engine::cuda
