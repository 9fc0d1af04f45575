// GroupQueryAttention through the C interface.
#include <memory>

#include "api/c_error.h"
#include "api/c_objects.h"
#include "api/c_values.h"
#include "gqa/operator.h"
#include "graph/validate.h"

namespace heddle::api {
namespace {

static_assert(gqa::kInputs == HEDDLE_GQA_INPUTS && gqa::kOutputs == HEDDLE_GQA_OUTPUTS);
static_assert(int{gqa::query_seqlens} == int{HEDDLE_GQA_QUERY_SEQLENS});
static_assert(int{gqa::head_sink} == int{HEDDLE_GQA_HEAD_SINK});

Result<gqa::Operator> operator_from(const heddle_gqa& given) {
  gqa::Operator op;
  for (int n = 0; n < gqa::kInputs; ++n) {
    const heddle_gqa_tensor& input = given.inputs[n];
    HEDDLE_ASSIGN(const std::optional<DataType> dtype, data_type(input.dtype));
    if (!dtype) continue;
    HEDDLE_ASSIGN(const Dims dims, dims_from(input.dims, input.rank, "Dims"));
    op.inputs[static_cast<size_t>(n)] = gqa::Shape{*dtype, dims};
  }
  for (int n = 0; n < gqa::kOutputs; ++n)
    op.wanted[static_cast<size_t>(n)] = n == gqa::output || given.wanted[n];
  op.total_length = given.total_sequence_length;
  op.num_heads = given.num_heads, op.kv_num_heads = given.kv_num_heads;
  op.scale = given.scale, op.softcap = given.softcap;
  op.causal = given.causal, op.local_window_size = given.local_window_size;
  op.sliding_window_cache = given.sliding_window_cache;
  op.do_rotary = given.do_rotary, op.rotary_interleaved = given.rotary_interleaved;
  op.smooth_softmax = given.smooth_softmax, op.qk_output = given.qk_output;
  op.qk_norm_epsilon = given.qk_norm_epsilon;
  if (given.q_norm_epsilon != 0) op.q_norm_epsilon = given.q_norm_epsilon;
  if (given.k_norm_epsilon != 0) op.k_norm_epsilon = given.k_norm_epsilon;
  if (given.k_quant_type) op.k_quant_type = given.k_quant_type;
  if (given.v_quant_type) op.v_quant_type = given.v_quant_type;
  op.kv_cache_bit_width = given.kv_cache_bit_width;
  return op;
}

Status create_gqa(const heddle_gqa* given, heddle_graph** out) {
  constexpr const char* kFunction = "heddle_gqa_create";
  if (!given) return null_argument(kFunction, "op");
  if (!out) return null_argument(kFunction, "graph");
  HEDDLE_ASSIGN(const gqa::Operator op, operator_from(*given));
  auto created = std::make_unique<heddle_graph>();
  HEDDLE_ASSIGN(created->graph, gqa::graph_of(op));
  HEDDLE_TRY(graph::validate(created->graph));
  *out = created.release();
  return {};
}

}  // namespace
}  // namespace heddle::api

using namespace heddle::api;

extern "C" {

void heddle_gqa_set_defaults(heddle_gqa* op) {
  if (!op) return;
  const heddle::gqa::Operator defaults;
  *op = {};
  for (int n = 0; n < heddle::gqa::kOutputs; ++n)
    op->wanted[n] = defaults.wanted[static_cast<size_t>(n)];
  op->causal = defaults.causal, op->local_window_size = defaults.local_window_size;
  op->smooth_softmax = defaults.smooth_softmax;
  op->qk_norm_epsilon = defaults.qk_norm_epsilon;
}

heddle_status heddle_gqa_create(const heddle_gqa* op, heddle_graph** graph) {
  return guarded([&] { return create_gqa(op, graph); });
}

}  // extern "C"
