#include "tools/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
  if (__builtin_cpu_supports("avx512bf16")) peak.bf16_gflops = gflops(avx512_bf16, threads);
#else
  peak.f32_gflops = gflops(portable, threads);
#endif
  return peak;
}

}  // namespace heddle::tools
