// What the kernels' sources are compiled against where a machine's own processor runs them: ptx/,
// beside this file, in place of kernels/ptx, by these functions. Each is called by a thread of the
// grid, which is a fiber (block.h), and says so in a sentence where it breaks what the hardware
// asks for: addresses out of bounds or unaligned, waits that nobody will end.
#pragma once

namespace heddle::emulator {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;

struct Index {
  unsigned x, y, z;
};
/// Where the calling thread is.
struct Place {
  Index thread, block, threads, blocks;
  u32 rank;  ///< of the block, in its cluster
};
const Place& here();

/// The launch fails with this sentence, and no thread of it goes on.
[[noreturn]] void fail(const char* sentence);

// A warp. --------------------------------------------------------------------------------------

/// Waits for the lanes of the mask. Of the last to arrive it returns what all gave, by lane, and
/// the others wait until that one calls part(); theirs is null.
void* const* meet(u32 mask, void* operands);
void part(u32 mask);
/// What each of the mask's lanes gave, by lane: until the caller's next one.
const u64* exchange(u32 mask, u64 value);
inline u32 lane() { return here().thread.x % 32; }

// A block and its memory. ----------------------------------------------------------------------

/// Waits at hardware barrier `id` for so many threads; or is counted there without waiting.
void barrier(u32 id, u32 threads, bool waits);
/// All threads: how many of them gave true.
u32 count_in_block(bool given);

/// The dynamic shared memory of the launch, and where a pointer into it or to a static variable
/// lies in the block's window.
u8* dynamic_shared();
u32 window_address(const void* pointer);
/// What lies at an address of the window, the own block's or (cluster_address) another one's: so
/// many bytes, aligned to `alignment`.
u8* shared(u32 address, u32 bytes, u32 alignment);
u32 cluster_address(u32 address, u32 rank);
/// As shared() of global memory: of an allocation that is there.
u8* global(const void* address, u64 bytes, u32 alignment);

/// The other threads go on before this one does: where it looks at what they or other blocks write.
void give_way();

// Copies by each thread (cp.async). They land when they are waited for, or at once: both are
// allowed, and blocks differ in it.

void copy_async(u32 to, const void* from, u32 bytes, bool valid);
void copy_async_commit();
void copy_async_wait(int pending);
/// An arrival at the barrier once the thread's copies so far have landed.
void copy_async_arrive(u32 barrier);

// Barriers in shared memory. -------------------------------------------------------------------

void mbarrier_init(u32 barrier, u32 arrivals);
/// Expects `bytes` more in this phase first.
void mbarrier_arrive(u32 barrier, u32 bytes = 0);
/// Whether the phase of that parity has ended; else waits a while first.
bool mbarrier_try_wait(u32 barrier, u32 parity);

// The copy engine. -----------------------------------------------------------------------------

void tensor_load(u32 to, const void* map, u32 barrier, const i32 (&at)[4]);
void tensor_store(const void* map, u32 from, const i32 (&at)[4]);
void tensor_map_address(void* map, const void* address);
void tensor_map_rows(void* map, u32 rows);
void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier);
void bulk_add(float* to, u32 from, u32 bytes);
void bulk_commit();
/// Until at most `pending` groups of the thread's stores are under way.
void bulk_wait(int pending);
/// Of a store to another block's shared memory: its barrier counts the bytes.
void cluster_store(u32 to, u32 barrier, const u32* words, u32 count);
void cluster_sync();

// Products. ------------------------------------------------------------------------------------

enum class Operand { bf16, f16, e4m3 };
/// Of one warp: ptx/mma.cuh.
void mma_m16n8k16(Operand type, float* d, const u32* a, u32 b0, u32 b1);

/// An operand of a warp group's product.
struct GroupOperand {
  const u32* registers;  ///< of A, or null
  u64 descriptor;        ///< else
  bool transposed;       ///< its m or n index is contiguous, not k
};
/// D (64 x n) = A B + D of a warp group, one k step (32 bytes of k). What it reads of shared memory
/// it reads, and D it writes, when it is waited for.
void group_product(Operand type, int n, float* d, const GroupOperand& a, const GroupOperand& b,
                   bool accumulate);
void group_products_commit();
void group_products_wait(int pending);

}  // namespace heddle::emulator
