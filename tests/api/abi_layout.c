/* What programs built with this SONAME have compiled into themselves: sizes of structs,
 * places of fields, values of enumerators, on machines with pointers of 64 bits. docs/abi.md says
 * when a line may change; new enumerators add lines. */
#include <heddle/heddle.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "the size of " #type)
#define FIELD(type, field, place) \
  _Static_assert(offsetof(type, field) == (place), "the place of " #type "." #field)
#define VALUE(enumerator, value) \
  _Static_assert((int)(enumerator) == (value), "the value of " #enumerator)

SIZE(heddle_tensor, 192);
FIELD(heddle_tensor, uid, 0);
FIELD(heddle_tensor, name, 8);
FIELD(heddle_tensor, dtype, 16);
FIELD(heddle_tensor, rank, 20);
FIELD(heddle_tensor, stride_rank, 24);
FIELD(heddle_tensor, dims, 32);
FIELD(heddle_tensor, strides, 96);
FIELD(heddle_tensor, is_virtual, 160);
FIELD(heddle_tensor, pass_by_value, 161);
FIELD(heddle_tensor, has_constant, 162);
FIELD(heddle_tensor, constant, 168);
FIELD(heddle_tensor, ragged_offset, 176);
FIELD(heddle_tensor, ragged_offset_multiplier, 184);

SIZE(heddle_gqa_tensor, 72);
FIELD(heddle_gqa_tensor, dtype, 0);
FIELD(heddle_gqa_tensor, rank, 4);
FIELD(heddle_gqa_tensor, dims, 8);

SIZE(heddle_gqa, 1376);
FIELD(heddle_gqa, inputs, 0);
FIELD(heddle_gqa, wanted, 1224);
FIELD(heddle_gqa, total_sequence_length, 1232);
FIELD(heddle_gqa, num_heads, 1240);
FIELD(heddle_gqa, kv_num_heads, 1248);
FIELD(heddle_gqa, scale, 1256);
FIELD(heddle_gqa, softcap, 1264);
FIELD(heddle_gqa, causal, 1272);
FIELD(heddle_gqa, local_window_size, 1280);
FIELD(heddle_gqa, sliding_window_cache, 1288);
FIELD(heddle_gqa, do_rotary, 1296);
FIELD(heddle_gqa, rotary_interleaved, 1304);
FIELD(heddle_gqa, smooth_softmax, 1312);
FIELD(heddle_gqa, qk_output, 1320);
FIELD(heddle_gqa, qk_norm_epsilon, 1328);
FIELD(heddle_gqa, q_norm_epsilon, 1336);
FIELD(heddle_gqa, k_norm_epsilon, 1344);
FIELD(heddle_gqa, k_quant_type, 1352);
FIELD(heddle_gqa, v_quant_type, 1360);
FIELD(heddle_gqa, kv_cache_bit_width, 1368);

SIZE(heddle_shape, 144);
FIELD(heddle_shape, uid, 0);
FIELD(heddle_shape, rank, 8);
FIELD(heddle_shape, stride_rank, 12);
FIELD(heddle_shape, dims, 16);
FIELD(heddle_shape, strides, 80);

SIZE(heddle_python, 64);
FIELD(heddle_python, tuple_item, 0);
FIELD(heddle_python, type_of, 8);
FIELD(heddle_python, release, 16);
FIELD(heddle_python, clear_error, 24);
FIELD(heddle_python, let_others_run, 32);
FIELD(heddle_python, run_again, 40);
FIELD(heddle_python, array_type, 48);
FIELD(heddle_python, read_array, 56);

SIZE(heddle_python_array, 16);
FIELD(heddle_python_array, dtype, 0);
FIELD(heddle_python_array, device, 4);
FIELD(heddle_python_array, elements, 8);

SIZE(heddle_python_call, 56);
FIELD(heddle_python_call, python, 0);
FIELD(heddle_python_call, plan, 8);
FIELD(heddle_python_call, uids, 16);
FIELD(heddle_python_call, arrays, 24);
FIELD(heddle_python_call, count, 32);
FIELD(heddle_python_call, device, 40);
FIELD(heddle_python_call, workspace_bytes, 48);

VALUE(HEDDLE_OK, 0);
VALUE(HEDDLE_ATTRIBUTE_NOT_SET, 1);
VALUE(HEDDLE_SHAPE_DEDUCTION_FAILED, 2);
VALUE(HEDDLE_INVALID_TENSOR_NAME, 3);
VALUE(HEDDLE_INVALID_VARIANT_PACK, 4);
VALUE(HEDDLE_GRAPH_NOT_SUPPORTED, 5);
VALUE(HEDDLE_GRAPH_EXECUTION_PLAN_CREATION_FAILED, 6);
VALUE(HEDDLE_GRAPH_EXECUTION_FAILED, 7);
VALUE(HEDDLE_HEURISTIC_QUERY_FAILED, 8);
VALUE(HEDDLE_UNSUPPORTED_GRAPH_FORMAT, 9);
VALUE(HEDDLE_CUDA_API_FAILED, 10);
VALUE(HEDDLE_INVALID_CUDA_DEVICE, 11);
VALUE(HEDDLE_HANDLE_ERROR, 12);
VALUE(HEDDLE_INVALID_VALUE, 13);
VALUE(HEDDLE_NVRTC_COMPILATION_FAILED, 14);
VALUE(HEDDLE_MALFORMED_INPUT, 15);
VALUE(HEDDLE_OUT_OF_MEMORY, 16);
VALUE(HEDDLE_IO_FAILED, 17);
VALUE(HEDDLE_DTYPE_UNSET, 0);
VALUE(HEDDLE_F64, 1);
VALUE(HEDDLE_F32, 2);
VALUE(HEDDLE_BF16, 3);
VALUE(HEDDLE_F16, 4);
VALUE(HEDDLE_F8E4M3, 5);
VALUE(HEDDLE_F8E5M2, 6);
VALUE(HEDDLE_I64, 7);
VALUE(HEDDLE_I32, 8);
VALUE(HEDDLE_I8, 9);
VALUE(HEDDLE_U64, 10);
VALUE(HEDDLE_U32, 11);
VALUE(HEDDLE_U8, 12);
VALUE(HEDDLE_BOOLEAN, 13);
VALUE(HEDDLE_GQA_QUERY, 0);
VALUE(HEDDLE_GQA_KEY, 1);
VALUE(HEDDLE_GQA_VALUE, 2);
VALUE(HEDDLE_GQA_PAST_KEY, 3);
VALUE(HEDDLE_GQA_PAST_VALUE, 4);
VALUE(HEDDLE_GQA_SEQLENS_K, 5);
VALUE(HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH, 6);
VALUE(HEDDLE_GQA_COS_CACHE, 7);
VALUE(HEDDLE_GQA_SIN_CACHE, 8);
VALUE(HEDDLE_GQA_POSITION_IDS, 9);
VALUE(HEDDLE_GQA_ATTENTION_BIAS, 10);
VALUE(HEDDLE_GQA_HEAD_SINK, 11);
VALUE(HEDDLE_GQA_K_SCALE, 12);
VALUE(HEDDLE_GQA_V_SCALE, 13);
VALUE(HEDDLE_GQA_Q_NORM_WEIGHT, 14);
VALUE(HEDDLE_GQA_K_NORM_WEIGHT, 15);
VALUE(HEDDLE_GQA_QUERY_SEQLENS, 16);
VALUE(HEDDLE_GQA_INPUTS, 17);
VALUE(HEDDLE_GQA_OUTPUT, 0);
VALUE(HEDDLE_GQA_PRESENT_KEY, 1);
VALUE(HEDDLE_GQA_PRESENT_VALUE, 2);
VALUE(HEDDLE_GQA_OUTPUT_QK, 3);
VALUE(HEDDLE_GQA_OUTPUTS, 4);
VALUE(HEDDLE_CPU, 0);
VALUE(HEDDLE_CUDA, 1);
