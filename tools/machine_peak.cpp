#include "tools/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine/cpu/isa.h"

namespace heddle::tools {
namespace {

// Enough independent chains to hide the latency of a multiply-add (4 cycles, two a cycle) and few
// enough to stay in registers.
constexpr int kChains = 12;
constexpr int64_t kSteps = 1 << 14;

// Each function runs kSteps * kChains instructions and returns the floating-point operations done.
// The empty asm statements keep the compiler from knowing the values, hence from dropping the work.

int64_t portable() {
  float sum[kChains] = {};
  float x = 1.0f, y = 1e-9f;
  asm volatile("" : "+x"(x), "+x"(y));
  for (int64_t step = 0; step < kSteps; ++step) {
    for (float& s : sum) s = s * x + y;
    asm volatile("" : "+m"(sum));
  }
  return kSteps * kChains * 2;
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) int64_t avx2() {
  __m256 sum[kChains] = {};
  __m256 x = _mm256_set1_ps(1.0f), y = _mm256_set1_ps(1e-9f);
  asm volatile("" : "+x"(x), "+x"(y));
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm256_fmadd_ps(sum[i], x, y);
      asm volatile("" : "+x"(sum[i]));
    }
  }
  return kSteps * kChains * 2 * 8;
}

__attribute__((target("avx512f"))) int64_t avx512() {
  __m512 sum[kChains] = {};
  __m512 x = _mm512_set1_ps(1.0f), y = _mm512_set1_ps(1e-9f);
  asm volatile("" : "+v"(x), "+v"(y));
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm512_fmadd_ps(sum[i], x, y);
      asm volatile("" : "+v"(sum[i]));
    }
  }
  return kSteps * kChains * 2 * 16;
}

__attribute__((target("avx512f,avx512bf16"))) int64_t avx512_bf16() {
  __m512 sum[kChains] = {};
  __m512 bits = _mm512_set1_ps(1e-9f);
  asm volatile("" : "+v"(bits));
  const __m512bh x = reinterpret_cast<const __m512bh&>(bits);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
      asm volatile("" : "+v"(sum[i]));
    }
  }
  return kSteps * kChains * 2 * 32;
}

/// Four sums in turn, as a tile's product takes 52 cycles and one begins every 16.
__attribute__((target("amx-tile,amx-bf16"))) int64_t amx() {
  struct alignas(64) {
    uint8_t palette = 1, rest[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  } whole_tiles;
  asm volatile("" : "+m"(whole_tiles));
  _tile_loadconfig(&whole_tiles);  // all tiles are zero then
  for (int64_t step = 0; step < kSteps / 16; ++step) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return kSteps / 16 * 4 * 2 * 16 * 16 * 32;
}

#endif

double gflops_once(int64_t (*work)(), int threads) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates(static_cast<size_t>(threads));
  const auto run = [&](double& rate) {
    int64_t operations = 0;
    const auto start = Clock::now();
    std::chrono::duration<double> passed{};
    while (passed.count() < 0.1) {
      operations += work();
      passed = Clock::now() - start;
    }
    rate = static_cast<double>(operations) / passed.count() / 1e9;
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < rates.size(); ++i) others.emplace_back(run, std::ref(rates[i]));
  run(rates[0]);
  for (std::thread& other : others) other.join();
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

/// The best of three: the first may still meet a core that sleeps.
double gflops(int64_t (*work)(), int threads) {
  double best = 0;
  for (int i = 0; i < 3; ++i) best = std::max(best, gflops_once(work, threads));
  return best;
}

}  // namespace

MachinePeak measure_machine_peak(int threads) {
  threads = std::max(threads, 1);
  MachinePeak peak;
#if defined(__x86_64__)
  int64_t (*widest)() = __builtin_cpu_supports("avx512f") ? avx512
                        : __builtin_cpu_supports("fma")   ? avx2
                                                          : portable;
  peak.f32_gflops = gflops(widest, threads);
  if (engine::cpu::is_available(engine::cpu::Isa::amx)) {
    peak.bf16_gflops = gflops(amx, threads);
  } else if (__builtin_cpu_supports("avx512bf16")) {
    peak.bf16_gflops = gflops(avx512_bf16, threads);
  }
#else
  peak.f32_gflops = gflops(portable, threads);
#endif
  return peak;
}

double measure_read_rate(int threads) {
  constexpr size_t kBytes = size_t{256} << 20;  // of all threads; caches hold less
  using Clock = std::chrono::steady_clock;
  threads = std::max(threads, 1);
  const size_t each = kBytes / sizeof(uint64_t) / static_cast<size_t>(threads);
  std::vector<std::vector<uint64_t>> parts(static_cast<size_t>(threads));
  std::vector<uint64_t> sums(parts.size());
  const auto together = [&](auto&& work) {
    std::vector<std::thread> others;
    for (size_t n = 1; n < parts.size(); ++n) others.emplace_back(work, n);
    work(0);
    for (std::thread& other : others) other.join();
  };
  // Written by who reads it, so that it lies where its reader is.
  together([&](size_t n) { parts[n].assign(each, n); });
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    together([&](size_t n) {
      // Eight sums at once: one alone waits for each addition.
      uint64_t sum[8] = {};
      for (size_t i = 0; i + 8 <= each; i += 8)
        for (size_t lane = 0; lane < 8; ++lane) sum[lane] += parts[n][i + lane];
      for (const uint64_t one : sum) sums[n] += one;
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(each * parts.size() * sizeof(uint64_t)) / seconds);
  }
  volatile uint64_t kept = 0;  // the sums are wanted
  for (const uint64_t one : sums) kept = kept + one;
  return best / 1e9;
}

}  // namespace heddle::tools
