// The frontend's engines for attention without a graph: programs with them compile, and are told by
// a sentence to put the attention into one.
#pragma once

#include <cstdint>

#include "heddle/frontend/error.h"

namespace heddle::frontend::experimental {

struct AttentionShape_t {
  uint32_t b = 0, h_q = 0, h_k = 0, h_v = 0, s_q = 0, s_kv = 0, d_qk = 0, d_v = 0;
};

template <int sm_version>
class Declined_prefill_engine {
 public:
  error_t check_support(const AttentionShape_t&, int /*sm_version*/) const { return declined(); }
  error_t build() { return declined(); }
  static int64_t get_workspace_size() { return 0; }
  template <class... Arguments>
  error_t execute(Arguments&&...) const {
    return declined();
  }

 private:
  static error_t declined() {
    return {error_code_t::GRAPH_NOT_SUPPORTED,
            "The prefill engine for SM " + std::to_string(sm_version) +
                " takes no graph, and Heddle has none that does not: put sdpa into a graph, with "
                "set_logit_max and set_score_sum_exp for what it gives beside O."};
  }
};
using Sm90SdpaPrefillEngine = Declined_prefill_engine<90>;
using Sm100SdpaPrefillEngine = Declined_prefill_engine<100>;

}  // namespace heddle::frontend::experimental
