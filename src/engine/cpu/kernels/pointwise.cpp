#include "engine/cpu/kernels/pointwise.h"

#include "engine/cpu/kernels/score.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

/// The values of a strip in memory of our own: what was loaded in place may lie where a result is
/// about to be written.
const float* own_strip(const ScoreValue& value, int64_t count, float* strip) {
  if (!value.strip) {
    fill(strip, count, value.number);
  } else if (value.strip != strip) {
    __builtin_memcpy(strip, value.strip, static_cast<size_t>(count) * sizeof(float));
  }
  return strip;
}

}  // namespace

void pointwise_strip(const PointwisePass& pass, const PointwiseStrip& at, void* scratch) {
  auto* const values = static_cast<ScoreValue*>(scratch);
  const int64_t value_bytes =
      round_up(pass.program.count * static_cast<int64_t>(sizeof(ScoreValue)), 64);
  const ScoreScratch of_score{
      values, reinterpret_cast<float*>(static_cast<char*>(scratch) + value_bytes), kPointwiseStrip};
  const ScoreCells cells{at.b, at.h, at.row, {}, at.first, 0, round_up(at.count, kLanes), at.count};
  evaluate(pass.program, cells, nullptr, nullptr, of_score);
  const auto strip_of = [&](const PointwisePass::Result& result) {
    return of_score.strips + result.step * of_score.strip_length;
  };
  for (int32_t n = 0; n < pass.result_count; ++n)
    own_strip(values[pass.results[n].step], at.count, strip_of(pass.results[n]));
  for (int32_t n = 0; n < pass.result_count; ++n) {
    const View& y = *pass.results[n].y;
    char* const to = row_address(y, at.b, at.h, at.row) + at.first * y.stride[3] * y.element_bytes;
    write_row(y.element, to, y.stride[3], y.element_bytes, at.count, strip_of(pass.results[n]), 1);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
