// Barriers in shared memory by where they lie: for copies that end while no thread of a block runs.
#pragma once

#include "emulator/device.h"

namespace heddle::emulator {

/// The barrier at an address of the calling thread's block, or of its cluster.
u64* barrier_at(u32 address);
/// A thread has come, and announced so many bytes.
void arrive(u64* barrier, u32 bytes = 0);
/// So many bytes have come.
void complete_bytes(u64* barrier, u32 bytes);

}  // namespace heddle::emulator
