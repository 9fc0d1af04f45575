// Loops that apply a function to every element.
#pragma once

#include "hlo/interpreter/codec.h"
#include "hlo/interpreter/parallel.h"
#include "hlo/literal.h"

namespace heddle::hlo {

template <class Out, class In, class F>
void map_elements(int64_t n, const std::byte* a, std::byte* out, F f) {
  const auto* x = reinterpret_cast<const typename In::Stored*>(a);
  auto* y = reinterpret_cast<typename Out::Stored*>(out);
  parallel_ranges(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = Out::store(f(In::load(x[i])));
  });
}

template <class Out, class In, class F>
void map_pairs(int64_t n, const std::byte* a, const std::byte* b, std::byte* out, F f) {
  const auto* x = reinterpret_cast<const typename In::Stored*>(a);
  const auto* y = reinterpret_cast<const typename In::Stored*>(b);
  auto* z = reinterpret_cast<typename Out::Stored*>(out);
  parallel_ranges(n, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) z[i] = Out::store(f(In::load(x[i]), In::load(y[i])));
  });
}

}  // namespace heddle::hlo
