// A short list of dims or strides, stored inline: plans hold and copy these without allocating.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace heddle {

inline constexpr int kMaxRank = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> values) {
    for (int64_t value : values) push_back(value);
  }
  template <class Iterator>
  Dims(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t back() const { return values_[rank_ - 1]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  /// Appends; values past kMaxRank are the caller's error and are dropped, so check first.
  void push_back(int64_t value) {
    if (rank_ < kMaxRank) values_[rank_++] = value;
  }
  friend bool operator==(const Dims& a, const Dims& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

/// "[2, 8, 128, 64]".
std::string to_string(const Dims& dims);
/// The product of the dims; nothing if one is negative or the product overflows int64.
std::optional<int64_t> element_count(const Dims& dims);
/// Row-major strides; nothing on overflow.
std::optional<Dims> dense_strides(const Dims& dims);
/// Elements from the first to one past the last that a tensor touches (0 if empty); strides of
/// size-1 dims do not count. Nothing on overflow or a negative stride.
std::optional<int64_t> span_of(const Dims& dims, const Dims& strides);
/// Whether two different indices share an element (stride 0 on a dim > 1, or overlapping strides).
/// Exact for the nested layouts of tensors; conservative (true) otherwise.
bool overlaps_itself(const Dims& dims, const Dims& strides);

}  // namespace heddle
