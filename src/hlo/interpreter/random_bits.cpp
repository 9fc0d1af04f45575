// rng-bit-generator: the bits XLA's CPU backend gives, for the states it takes.
#include <algorithm>
#include <array>

#include "core/philox.h"
#include "core/threefry.h"
#include "hlo/interpreter/machine.h"

namespace heddle::hlo {
namespace {

uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

// Two words for each counter. Arrays of 64 bits take both words of one counter an element. Others
// are split along a dimension, the first of even size, else the largest (padded by one): its even
// indices hold first words, the odd ones second words.
void fill_with_threefry(uint64_t key, uint64_t& counter, Literal& bits) {
  const std::array<uint32_t, 2> key_words{low(key), high(key)};
  const auto words = [&](uint64_t index) {
    const uint64_t at = counter + index;
    return threefry_2x32_20({low(at), high(at)}, key_words);
  };
  const int64_t count = bits.element_count();
  if (size_of(bits.shape().type()) == 8) {
    for (int64_t i = 0; i < count; ++i) {
      const auto [first, second] = words(i);
      bits.set_integer(i, static_cast<int64_t>(uint64_t{second} << 32 | first));
    }
    counter += count;
    return;
  }
  const std::vector<int64_t>& dims = bits.shape().dims();
  int64_t before = 1;
  int64_t length = 1;
  int64_t after = 1;
  if (!dims.empty()) {
    auto split = std::find_if(dims.begin(), dims.end(), [](int64_t dim) { return dim % 2 == 0; });
    if (split == dims.end()) split = std::max_element(dims.begin(), dims.end());
    length = *split;
    for (auto dim = dims.begin(); dim != split; ++dim) before *= *dim;
    for (auto dim = split + 1; dim != dims.end(); ++dim) after *= *dim;
  }
  const int64_t pairs = (length + 1) / 2;
  for (int64_t a = 0; a < before; ++a) {
    for (int64_t h = 0; h < pairs; ++h) {
      for (int64_t c = 0; c < after; ++c) {
        const auto pair = words((a * pairs + h) * after + c);
        bits.set_integer((a * length + 2 * h) * after + c, pair[0]);
        if (2 * h + 1 < length) bits.set_integer((a * length + 2 * h + 1) * after + c, pair[1]);
      }
    }
  }
  counter += before * pairs * after;
}

// Four words for each 128-bit counter, in order; a 64-bit element takes two.
void fill_with_philox(uint64_t key, uint64_t& counter_low, uint64_t& counter_high, Literal& bits) {
  const std::array<uint32_t, 2> key_words{low(key), high(key)};
  const int64_t words_each = size_of(bits.shape().type()) == 8 ? 2 : 1;
  const int64_t words = bits.element_count() * words_each;
  for (int64_t first = 0; first < words; first += 4) {
    const auto block = philox_4x32_10(
        {low(counter_low), high(counter_low), low(counter_high), high(counter_high)}, key_words);
    for (int64_t w = first; w < std::min(first + 4, words); w += words_each) {
      const uint64_t value = words_each == 2
                                 ? uint64_t{block[w - first + 1]} << 32 | block[w - first]
                                 : block[w - first];
      bits.set_integer(w / words_each, static_cast<int64_t>(value));
    }
    if (++counter_low == 0) ++counter_high;
  }
}

}  // namespace

Result<Literal> evaluate_random_bits(Machine& machine, const Instruction& x, Operands operands) {
  const std::string_view algorithm = x.text("algorithm");
  Literal state = std::move(operands[0]);
  const int64_t length = state.element_count();
  const bool threefry = algorithm == "rng_three_fry";
  // XLA's default on the CPU is Philox.
  const bool philox = algorithm == "rng_philox" || algorithm == "rng_default";
  const bool fits = state.shape().type() == ElementType::u64 && state.shape().rank() == 1 &&
                    ((threefry && length == 2) || (philox && (length == 2 || length == 3)));
  if (!fits) {
    return refuse(x, fmt::format("with algorithm '{}' and a state of {} is not known", algorithm,
                                 to_string_without_layout(state.shape())));
  }
  HEDDLE_ASSIGN(Literal bits, machine.allocate(x.shape().elements()[1]));
  if (bits.element_count() == 0) return Literal::tuple({std::move(state), std::move(bits)});
  const auto key = static_cast<uint64_t>(state.get_integer(0));
  auto counter = static_cast<uint64_t>(state.get_integer(1));
  HEDDLE_TRY(machine.spend(x, bits.element_count() * 16));
  if (threefry) {
    fill_with_threefry(key, counter, bits);
  } else {
    // A state of two words has the key stand for the counter's upper half.
    auto upper = length == 3 ? static_cast<uint64_t>(state.get_integer(2)) : key;
    fill_with_philox(key, counter, upper, bits);
    if (length == 3) state.set_integer(2, static_cast<int64_t>(upper));
  }
  state.set_integer(1, static_cast<int64_t>(counter));
  return Literal::tuple({std::move(state), std::move(bits)});
}

}  // namespace heddle::hlo
