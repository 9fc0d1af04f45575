// What this machine's cores can do at most, measured: the yardstick of `heddle bench`.
#pragma once

namespace heddle::tools {

struct MachinePeak {
  double f32_gflops = 0;   ///< fused multiply-adds in registers, all threads at once
  double bf16_gflops = 0;  ///< products of bf16: AMX, else AVX512_BF16; 0 where there is neither
};

/// GB/s at which so many threads read memory that no cache holds, all at once; about half a second.
double measure_read_rate(int threads);

/// Runs independent multiply-adds on `threads` threads for about a third of a second for each
/// figure.
MachinePeak measure_machine_peak(int threads);

}  // namespace heddle::tools
