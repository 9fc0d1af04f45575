// Random programs that put new rows into caches of K and V, and attend to them.
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// How often each feature of cache_append is drawn (0 never, 1 whenever the contract allows it).
struct CacheOptions {
  std::vector<DataType> dtypes{DataType::f32, DataType::bf16, DataType::f16};
  std::vector<DataType> code_types{DataType::i8, DataType::u8, DataType::f8e4m3};
  int64_t max_new_rows = 9, max_past = 40, min_head_dim = 8, max_head_dim = 64;
  int64_t pairs = 0;  ///< of columns that turn; 0 for any
  double packed = 0.4;
  double has_past = 0.8;
  double in_place = 0.5;           ///< given a past
  double paged = 0.2, ring = 0.2;  ///< given a past
  double codes = 0.4;
  double new_lengths = 0.4;           ///< entries of fewer new rows than S
  double lengths_out_of_range = 0.1;  ///< of each entry
  double bad_pages = 0.1;             ///< given pages: of each
  double rotates = 0.7, interleaved = 0.4, positions = 0.3, positions_out_of_range = 0.1;
  double norms = 0.4;
  double no_numbers = 0;  ///< of each new number and scale: it is NaN or infinite
  double attends = 0;     ///< sdpa behind it, of caches without codes
};

Program random_cache_append(Random& random, const CacheOptions& options);

}  // namespace heddle::testing
