/* The C interface as a C program uses it. */
#define _POSIX_C_SOURCE 200112L /* setenv */
#include <heddle/heddle.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s is false; last error: %s\n", __FILE__, __LINE__, #condition, \
              heddle_last_error());                                                           \
      ++failures;                                                                             \
    }                                                                                         \
  } while (0)
#define CHECK_OK(call) CHECK((call) == HEDDLE_OK)
#define CHECK_SENTENCE(call, status, part)            \
  do {                                                \
    CHECK((call) == (status));                        \
    CHECK(strstr(heddle_last_error(), part) != NULL); \
  } while (0)

enum { B = 2, H = 2, S = 9, D = 16, COUNT = B * H * S * D };

static heddle_tensor tensor(int64_t uid, const char* name) {
  heddle_tensor t = {0};
  t.uid = uid;
  t.name = name;
  t.rank = 4;
  t.dims[0] = B, t.dims[1] = H, t.dims[2] = S, t.dims[3] = D;
  return t;
}

/* Causal attention: uids 1, 2, 3 in, 4 out. */
static heddle_graph* build_graph(void) {
  heddle_graph* graph = NULL;
  int32_t node = -1;
  CHECK_OK(heddle_graph_create("c", HEDDLE_F32, HEDDLE_F32, HEDDLE_F32, &graph));
  const char* names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    heddle_tensor t = tensor(i + 1, names[i]);
    CHECK_OK(heddle_graph_add_tensor(graph, &t));
  }
  heddle_tensor o = {0};
  o.uid = 4;
  o.name = "o";
  CHECK_OK(heddle_graph_add_tensor(graph, &o));
  CHECK_OK(heddle_graph_add_node(graph, "sdpa", "attention", &node));
  CHECK_OK(heddle_node_set_tensor(graph, node, "q", 1));
  CHECK_OK(heddle_node_set_tensor(graph, node, "k", 2));
  CHECK_OK(heddle_node_set_tensor(graph, node, "v", 3));
  CHECK_OK(heddle_node_set_tensor(graph, node, "o", 4));
  CHECK_OK(heddle_node_set_number(graph, node, "attn_scale", 0.25));
  CHECK_OK(heddle_node_set_integer(graph, node, "right_bound", 0));
  return graph;
}

static void attention_by_hand(const float* q, const float* k, const float* v, float* o) {
  for (int bh = 0; bh < B * H; ++bh) {
    for (int i = 0; i < S; ++i) {
      const float* row = q + (bh * S + i) * D;
      double weights[S], sum = 0;
      for (int j = 0; j <= i; ++j) {
        double dot = 0;
        for (int d = 0; d < D; ++d) dot += (double)row[d] * k[(bh * S + j) * D + d];
        weights[j] = exp(0.25 * dot);
        sum += weights[j];
      }
      for (int d = 0; d < D; ++d) {
        double value = 0;
        for (int j = 0; j <= i; ++j) value += weights[j] / sum * v[(bh * S + j) * D + d];
        o[(bh * S + i) * D + d] = (float)value;
      }
    }
  }
}

static void test_execution(const heddle_graph* graph) {
  heddle_plan* plan = NULL;
  CHECK_OK(heddle_graph_supported(graph, HEDDLE_CPU));
  CHECK_OK(heddle_plan_create(graph, HEDDLE_CPU, &plan));
  CHECK(strcmp(heddle_plan_engine(plan), "cpu") == 0);
  CHECK(strlen(heddle_plan_description(plan)) > 0);
  CHECK(strncmp(heddle_plan_attention_paths(plan), "flash: ", 7) == 0 ||
        strncmp(heddle_plan_attention_paths(plan), "decode: ", 8) == 0);

  const int64_t* uids = NULL;
  size_t count = 0;
  CHECK_OK(heddle_plan_inputs(plan, &uids, &count));
  CHECK(count == 3 && uids[0] == 1 && uids[1] == 2 && uids[2] == 3);
  CHECK_OK(heddle_plan_outputs(plan, &uids, &count));
  CHECK(count == 1 && uids[0] == 4);
  heddle_tensor o;
  CHECK_OK(heddle_plan_tensor(plan, 4, &o));
  CHECK(o.rank == 4 && o.dims[2] == S && o.strides[1] == S * D && o.dtype == HEDDLE_F32);
  CHECK(strcmp(o.name, "o") == 0);

  static float q[COUNT], k[COUNT], v[COUNT], out[COUNT], expected[COUNT];
  srand(1);
  for (int i = 0; i < COUNT; ++i) {
    q[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    k[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    v[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    out[i] = NAN;
  }
  void* workspace = malloc(heddle_plan_workspace_bytes(plan) + 1);
  const int64_t pack[] = {77, 4, 3, 2, 1};
  void* pointers[] = {NULL, out, v, k, q};
  CHECK_OK(heddle_plan_execute(plan, pack, pointers, 5, NULL, 0, workspace, NULL));
  attention_by_hand(q, k, v, expected);
  for (int i = 0; i < COUNT; ++i) CHECK(fabsf(out[i] - expected[i]) < 1e-5f);

  CHECK_SENTENCE(heddle_plan_execute(plan, pack, pointers, 4, NULL, 0, workspace, NULL),
                 HEDDLE_INVALID_VARIANT_PACK, "Uid 1 not found in variant pack.");
  CHECK_SENTENCE(heddle_plan_execute(NULL, pack, pointers, 5, NULL, 0, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "null pointer for plan");
  CHECK_SENTENCE(heddle_plan_execute(plan, NULL, pointers, 5, NULL, 0, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "null pointer for uids");
  CHECK_SENTENCE(heddle_plan_execute(plan, pack, NULL, 5, NULL, 0, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "null pointer for pointers");

  /* Half the queries: half the rows of the same memory. */
  heddle_shape shapes[] = {{.uid = 1, .rank = 4, .dims = {B, H, S / 2, D}},
                           {.uid = 2, .rank = 4, .dims = {B, H, S / 2, D}}};
  for (int i = 0; i < COUNT; ++i) out[i] = NAN;
  CHECK_SENTENCE(heddle_plan_execute(plan, pack, pointers, 5, NULL, 1, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "null pointer for shapes");
  CHECK_SENTENCE(heddle_plan_execute(plan, pack, pointers, 5, shapes, 2, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "length");
  CHECK_SENTENCE(heddle_plan_execute(plan, pack, pointers, 5, shapes, 129, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "129 shapes are given, expected at most 128");
  shapes[1].rank = HEDDLE_MAX_RANK + 1;
  CHECK_SENTENCE(heddle_plan_execute(plan, pack, pointers, 5, shapes, 2, workspace, NULL),
                 HEDDLE_INVALID_VALUE, "The shape of uid 2 has 9 dims, expected 0 to 8");
  for (int i = 0; i < COUNT; ++i) CHECK(isnan(out[i]));
  CHECK_OK(heddle_plan_execute(plan, pack, pointers, 5, shapes, 1, workspace, NULL));
  for (int i = 0; i < COUNT; ++i) {
    CHECK(i / D % S < S / 2 ? fabsf(out[i] - expected[i]) < 1e-5f : isnan(out[i]));
  }
  CHECK_SENTENCE(heddle_plan_tensor(plan, 99, &o), HEDDLE_INVALID_VALUE, "no tensor with uid 99");
  free(workspace);
  heddle_plan_free(plan);
}

/* As Python's C interface has them, over "objects" that are DLTensors' places in an array of them.
 */
typedef struct dl_tensor {
  void* data;
  int32_t device, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *dims, *strides;
  uint64_t byte_offset;
} dl_tensor;
static bool is_locked = true;
static int type_references = 0, errors = 0;
static void* tuple_item(void* tuple, ptrdiff_t index) { return ((dl_tensor**)tuple)[index]; }
static void* type_of(void* object) {
  ++type_references;
  return ((dl_tensor*)object)->lanes == 0 ? object : &type_references;
}
static void release(void* object) {
  (void)object;
  --type_references;
}
static void clear_error(void) { --errors; }
static void* let_others_run(void) {
  is_locked = false;
  return &is_locked;
}
static void run_again(void* state) { *(bool*)state = true; }
static int read_array(void* array, void* to) {
  if (((dl_tensor*)array)->lanes > 1) return ++errors, -1;
  memcpy(to, array, sizeof(dl_tensor));
  return 0;
}

static void test_execution_on_objects(const heddle_graph* graph) {
  heddle_plan* plan = NULL;
  CHECK_OK(heddle_plan_create(graph, HEDDLE_CPU, &plan));
  static float data[4][COUNT + 8], expected[COUNT];
  for (int i = 0; i < 3 * COUNT; ++i) data[i / COUNT][i % COUNT] = (float)((i * 37) % 101) / 50 - 1;
  attention_by_hand(data[0], data[1], data[2], expected);
  const size_t bytes = heddle_plan_workspace_bytes(plan);
  void* const memory = malloc(bytes + 1);

  const int64_t dims[] = {B, H, S, D}, gaps[] = {H * S * D, S * D, D, 2}, none[] = {1, 1, 1, 0};
  const int64_t uids[] = {1, 2, 3, 4}, extent[] = {(int64_t)bytes}, little[] = {(int64_t)bytes - 1};
  enum { kFloat = 2, kUint = 1, kCpu = 1, kCuda = 2 };
  dl_tensor tensors[4], workspace = {memory, kCpu, 0, 1, kUint, 8, 1, extent, NULL, 1};
  void* tuple[4];
  heddle_python_array arrays[4];
  for (int i = 0; i < 4; ++i) {
    tensors[i] = (dl_tensor){data[i], kCpu, 0, 4, kFloat, 32, 1, dims, NULL, 0};
    tuple[i] = &tensors[i];
    arrays[i] = (heddle_python_array){HEDDLE_F32, HEDDLE_CPU, COUNT};
  }
  const heddle_python python = {tuple_item,     type_of,   release,          clear_error,
                                let_others_run, run_again, &type_references, read_array};
  heddle_python_call call = {&python, plan, uids, arrays, 4, HEDDLE_CPU, bytes};
  CHECK(heddle_python_execute(&call, tuple, &workspace, NULL) == HEDDLE_OK);
  for (int i = 0; i < COUNT; ++i) CHECK(fabsf(data[3][i] - expected[i]) < 1e-5f);

  /* What is not as expected: nothing runs, and the interpreter stays locked. */
  data[3][0] = 77;
  const dl_tensor good = tensors[0];
#define REFUSED(change) \
  tensors[0] = good;    \
  change;               \
  CHECK(heddle_python_execute(&call, tuple, &workspace, NULL) == -1);
  REFUSED(tensors[0].code = kUint)
  REFUSED(tensors[0].bits = 16)
  REFUSED(tensors[0].device = kCuda)
  REFUSED(tensors[0].lanes = 0) /* of another type */
  REFUSED(tensors[0].lanes = 2) /* not read */
  REFUSED(tensors[0].strides = none)
  REFUSED(tensors[0].rank = 3)
  REFUSED(tuple[0] = NULL; ++errors)
  tuple[0] = &tensors[0];
  REFUSED(workspace.dims = little)
  workspace.dims = extent;
  REFUSED(workspace.device = kCuda)
  workspace.device = kCpu;
  const heddle_python* const python_of_call = call.python;
  REFUSED(call.python = NULL)
  call.python = python_of_call;
  const heddle_python_array* const arrays_of_call = call.arrays;
  REFUSED(call.arrays = NULL)
  call.arrays = arrays_of_call;
  REFUSED(call.count = 129)
  call.count = 4;
  REFUSED(arrays[0].dtype = HEDDLE_DTYPE_UNSET)
  arrays[0].dtype = HEDDLE_F32;
  CHECK(heddle_python_execute(NULL, tuple, &workspace, NULL) == -1);
  CHECK(heddle_python_execute(&call, NULL, &workspace, NULL) == -1);
  CHECK(heddle_python_execute(&call, tuple, NULL, NULL) == -1);
  CHECK(data[3][0] == 77);

  /* Memory that reaches far enough by its strides, or begins behind its address; a failure of the
   * execution is its own. */
  tensors[0] = good;
  tensors[0].strides = gaps;
  tensors[3].byte_offset = 8 * sizeof(float);
  CHECK(heddle_python_execute(&call, tuple, &workspace, NULL) == HEDDLE_OK);
  for (int i = 0; i < COUNT; ++i) CHECK(fabsf(data[3][i + 8] - expected[i]) < 1e-5f);
  tensors[3].data = data[0];
  tensors[3].byte_offset = 0;
  CHECK(heddle_python_execute(&call, tuple, &workspace, NULL) == HEDDLE_INVALID_VARIANT_PACK);
  call.workspace_bytes = 0; /* none is read then */
  workspace.device = kCuda;
  CHECK(heddle_python_execute(&call, tuple, &workspace, NULL) != -1);
  CHECK(is_locked && type_references == 0 && errors == 0);
  free(memory);
  heddle_plan_free(plan);
}

static void test_text(heddle_graph* graph) {
  const char* text = NULL;
  CHECK_OK(heddle_graph_text(graph, &text));
  heddle_graph* read = NULL;
  CHECK_OK(heddle_graph_parse(text, strlen(text), &read));
  const char* again = NULL;
  CHECK_OK(heddle_graph_text(read, &again));
  CHECK(strcmp(text, again) == 0);
  CHECK_OK(heddle_graph_validate(read));
  heddle_tensor o;
  CHECK_OK(heddle_graph_tensor(read, 4, &o));
  CHECK(o.rank == 4 && o.dims[3] == D);
  heddle_graph_free(read);
  read = NULL;
  CHECK_SENTENCE(heddle_graph_parse(text, strlen(text) / 2, &read), HEDDLE_MALFORMED_INPUT,
                 "line 1, column");
  CHECK(read == NULL);
}

static void test_score_expression(void) {
  heddle_graph* graph = build_graph();
  for (int64_t uid = 5; uid < 7; ++uid) {
    heddle_tensor value = {0};
    value.uid = uid;
    value.is_virtual = true;
    CHECK_OK(heddle_graph_add_tensor(graph, &value));
  }
  const int64_t in = 5;
  CHECK_OK(heddle_node_set_tensor(graph, 0, "score_mod.score_in", 5));
  CHECK_OK(heddle_node_set_tensor(graph, 0, "score_mod.score_out", 6));
  CHECK_OK(heddle_node_add_pointwise(graph, 0, "score_mod", "tanh_fwd", &in, 1, 6, 0));
  CHECK_OK(heddle_graph_validate(graph));
  CHECK_SENTENCE(heddle_node_add_pointwise(graph, 0, "score_mod", "tan", &in, 1, 99, 0),
                 HEDDLE_INVALID_VALUE, "no tensor with uid 99");
  CHECK_SENTENCE(heddle_node_add_pointwise(graph, 0, "score_mod", "spam", &in, 1, 6, 0),
                 HEDDLE_INVALID_VALUE, "no pointwise op 'spam'");
  CHECK_SENTENCE(heddle_node_add_pointwise(graph, 0, "score_mod", "tan", NULL, 1, 6, 0),
                 HEDDLE_INVALID_VALUE, "null pointer for input_uids");
  heddle_graph_free(graph);
}

static void test_refusals(heddle_graph* graph) {
  heddle_graph* made = NULL;
  heddle_plan* plan = NULL;
  heddle_tensor t = tensor(1, "again");
  int32_t node = 0;
  const int64_t dims[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  CHECK_SENTENCE(heddle_graph_create(NULL, HEDDLE_F32, HEDDLE_F32, HEDDLE_F32, NULL),
                 HEDDLE_INVALID_VALUE, "null pointer for graph");
  CHECK_SENTENCE(heddle_graph_create(NULL, (heddle_dtype)99, HEDDLE_F32, HEDDLE_F32, &made),
                 HEDDLE_INVALID_VALUE, "no data type number 99");
  CHECK_SENTENCE(heddle_graph_parse(NULL, 5, &made), HEDDLE_INVALID_VALUE, "null pointer for text");
  CHECK_SENTENCE(heddle_graph_add_tensor(graph, &t), HEDDLE_INVALID_VALUE,
                 "uid 1 is given to two tensors");
  t.uid = 0;
  CHECK_SENTENCE(heddle_graph_add_tensor(graph, &t), HEDDLE_INVALID_VALUE, "uid 0");
  t.uid = 50, t.rank = 9;
  CHECK_SENTENCE(heddle_graph_add_tensor(graph, &t), HEDDLE_INVALID_VALUE, "rank 9");
  t.rank = -1;
  CHECK_SENTENCE(heddle_graph_add_tensor(graph, &t), HEDDLE_INVALID_VALUE, "rank -1");
  CHECK_SENTENCE(heddle_graph_add_tensor(NULL, &t), HEDDLE_INVALID_VALUE, "null pointer for graph");
  CHECK_SENTENCE(heddle_graph_add_tensor(graph, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for tensor");
  CHECK_SENTENCE(heddle_graph_add_node(graph, "conv", NULL, &node), HEDDLE_INVALID_VALUE,
                 "no op \"conv\"");
  CHECK_SENTENCE(heddle_graph_add_node(graph, NULL, NULL, &node), HEDDLE_INVALID_VALUE,
                 "null pointer for op");
  CHECK_SENTENCE(heddle_node_set_tensor(graph, 0, "q", 99), HEDDLE_INVALID_VALUE,
                 "no tensor with uid 99");
  CHECK_SENTENCE(heddle_node_set_tensor(graph, 7, "q", 1), HEDDLE_INVALID_VALUE,
                 "no node number 7");
  CHECK_SENTENCE(heddle_node_set_number(graph, 0, "spam", 1), HEDDLE_INVALID_VALUE,
                 "no field 'spam'");
  CHECK_SENTENCE(heddle_node_set_number(graph, 0, NULL, 1), HEDDLE_INVALID_VALUE,
                 "null pointer for field");
  CHECK_SENTENCE(heddle_node_set_flag(graph, 0, "attn_scale", true), HEDDLE_INVALID_VALUE,
                 "given a flag");
  CHECK_SENTENCE(heddle_node_set_choice(graph, 0, "diagonal_alignment", NULL), HEDDLE_INVALID_VALUE,
                 "null pointer");
  CHECK_SENTENCE(heddle_node_set_dims(graph, 0, "dropout.threefry_strides", dims, 9),
                 HEDDLE_INVALID_VALUE, "rank 9");
  CHECK_SENTENCE(heddle_plan_create(graph, (heddle_device)5, &plan), HEDDLE_INVALID_VALUE,
                 "no device number 5");
  CHECK_SENTENCE(heddle_plan_create_for(NULL, "sm_90a", &plan), HEDDLE_INVALID_VALUE, "graph");
  CHECK_SENTENCE(heddle_plan_create_for(graph, NULL, &plan), HEDDLE_INVALID_VALUE, "architecture");
  CHECK_SENTENCE(heddle_plan_create_for(graph, "sm_90a", NULL), HEDDLE_INVALID_VALUE, "plan");
  CHECK_SENTENCE(heddle_plan_create_for(graph, "sm_90", &plan), HEDDLE_INVALID_VALUE, "sm_90a");
  CHECK_SENTENCE(heddle_plan_create_for(graph, "hopper", &plan), HEDDLE_INVALID_VALUE,
                 "expected sm_80, sm_86, sm_90a");
  CHECK_SENTENCE(heddle_plan_create(NULL, HEDDLE_CPU, &plan), HEDDLE_INVALID_VALUE,
                 "null pointer for graph");
  CHECK_SENTENCE(heddle_plan_create(graph, HEDDLE_CPU, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for plan");
  CHECK_OK(heddle_node_set_integer(graph, 0, "right_bound", -1));
  CHECK_SENTENCE(heddle_graph_validate(graph), HEDDLE_INVALID_VALUE, "Right bound");
  CHECK_SENTENCE(heddle_plan_create(graph, HEDDLE_CPU, &plan), HEDDLE_INVALID_VALUE, "Right bound");
  CHECK(plan == NULL && made == NULL);
  CHECK_SENTENCE(heddle_graph_parse("[\xF0\x9F", 3, &made), HEDDLE_MALFORMED_INPUT,
                 "last read: '[?'");
  CHECK(heddle_plan_workspace_bytes(NULL) == 0 && strcmp(heddle_plan_description(NULL), "") == 0);
  CHECK(strcmp(heddle_plan_attention_paths(NULL), "") == 0);
  heddle_plan_free(NULL);
  heddle_graph_free(NULL);
  heddle_gqa gqa;
  heddle_gqa_set_defaults(NULL);
  heddle_gqa_set_defaults(&gqa);
  CHECK(gqa.causal == 1 && gqa.local_window_size == -1 && !gqa.wanted[HEDDLE_GQA_OUTPUT_QK]);
  CHECK_SENTENCE(heddle_gqa_create(NULL, &made), HEDDLE_INVALID_VALUE, "null pointer for op");
  CHECK_SENTENCE(heddle_gqa_create(&gqa, NULL), HEDDLE_INVALID_VALUE, "null pointer for graph");
  CHECK_SENTENCE(heddle_gqa_create(&gqa, &made), HEDDLE_INVALID_VALUE, "must be positive");
  gqa.inputs[0].dtype = (heddle_dtype)77;
  CHECK_SENTENCE(heddle_gqa_create(&gqa, &made), HEDDLE_INVALID_VALUE, "no data type number 77");
  CHECK(heddle_xla_register_all(NULL) == 2);
  CHECK(heddle_xla_ffi_handler(NULL) == NULL);
}

static heddle_plan* planned_on_cpu(const char* text) {
  heddle_graph* graph = NULL;
  heddle_plan* plan = NULL;
  CHECK_OK(heddle_graph_parse(text, strlen(text), &graph));
  CHECK_OK(heddle_plan_create(graph, HEDDLE_CPU, &plan));
  heddle_graph_free(graph);
  return plan;
}

/* Offsets and lengths, too, lie where their strides say. */
static void test_packed_bytes_by_strides(void) {
  static const char text[] =
      "{\"heddle_graph\":1,\"io_dtype\":\"f32\",\"tensors\":["
      "{\"uid\":1,\"name\":\"q\",\"dims\":[2,1,5,8],\"strides\":[40,8,8,1],\"ragged_offset\":5,"
      "\"ragged_offset_multiplier\":8},"
      "{\"uid\":2,\"name\":\"k\",\"dims\":[2,1,7,8]},{\"uid\":3,\"name\":\"v\",\"dims\":[2,1,7,8]},"
      "{\"uid\":4,\"name\":\"o\",\"dims\":[2,1,5,8]},"
      "{\"uid\":5,\"name\":\"offsets\",\"dtype\":\"i64\",\"dims\":[3,1,1,1],\"strides\":[2,9,9,9]},"
      "{\"uid\":6,\"name\":\"q_len\",\"dtype\":\"i32\",\"dims\":[2,1,1,1],\"strides\":[3,1,1,1]},"
      "{\"uid\":7,\"name\":\"kv_len\",\"dtype\":\"i64\",\"dims\":[2,1,1,1],\"strides\":[0,1,1,1]}],"
      "\"nodes\":[{\"op\":\"sdpa\",\"q\":1,\"k\":2,\"v\":3,\"o\":4,\"padding_mask\":true,"
      "\"seq_len_q\":6,\"seq_len_kv\":7}]}";
  heddle_plan* const plan = planned_on_cpu(text);
  int64_t offsets[] = {0, 9, 2, 9, 6};
  int32_t lengths[] = {2, 5, 5, 4};
  const int64_t uids[] = {6, 5};
  void* pointers[] = {lengths, offsets};
  size_t bytes = 0;
  CHECK_OK(heddle_plan_tensor_bytes(plan, 1, uids, pointers, 2, &bytes));
  CHECK(bytes == (2 + 4) * 8 * 4);
  heddle_plan_free(plan);
}

/* Two sequences of 2 and 4 tokens, [token, head, dim] in memory. */
static void test_packed_bytes(void) {
  static const char text[] =
      "{\"heddle_graph\":1,\"io_dtype\":\"f32\",\"tensors\":["
      "{\"uid\":1,\"name\":\"q\",\"dims\":[2,3,5,8],\"strides\":[120,8,24,1],\"ragged_offset\":5,"
      "\"ragged_offset_multiplier\":24},"
      "{\"uid\":2,\"name\":\"k\",\"dims\":[2,3,7,8],\"strides\":[168,8,24,1]},"
      "{\"uid\":3,\"name\":\"v\",\"dims\":[2,3,7,8],\"strides\":[168,8,24,1]},"
      "{\"uid\":4,\"name\":\"o\",\"dims\":[2,3,5,8],\"strides\":[120,8,24,1],\"ragged_offset\":5,"
      "\"ragged_offset_multiplier\":24},"
      "{\"uid\":5,\"name\":\"offsets\",\"dtype\":\"i32\",\"dims\":[3,1,1,1]},"
      "{\"uid\":6,\"name\":\"q_len\",\"dtype\":\"i32\",\"dims\":[2,1,1,1]},"
      "{\"uid\":7,\"name\":\"kv_len\",\"dtype\":\"i64\",\"dims\":[2,1,1,1]}],"
      "\"nodes\":[{\"op\":\"sdpa\",\"q\":1,\"k\":2,\"v\":3,\"o\":4,\"padding_mask\":true,"
      "\"seq_len_q\":6,\"seq_len_kv\":7}]}";
  heddle_plan* const plan = planned_on_cpu(text);
  int32_t offsets[] = {0, 2, 6}, lengths[] = {2, 4};
  const int64_t uids[] = {6, 5};
  void* pointers[] = {lengths, offsets};
  size_t bytes = 0;
  CHECK_OK(heddle_plan_tensor_bytes(plan, 2, NULL, NULL, 0, &bytes));
  CHECK(bytes == 2 * 7 * 3 * 8 * 4);
  for (int64_t uid = 1; uid <= 4; uid += 3) {
    lengths[1] = 4;
    CHECK_OK(heddle_plan_tensor_bytes(plan, uid, uids, pointers, 2, &bytes));
    CHECK(bytes == 6 * 3 * 8 * 4);
    lengths[1] = 3; /* of a padded entry its rows alone */
    CHECK_OK(heddle_plan_tensor_bytes(plan, uid, uids, pointers, 2, &bytes));
    CHECK(bytes == 5 * 3 * 8 * 4);
    lengths[1] = INT32_MAX; /* lengths are clamped to the dims */
    CHECK_OK(heddle_plan_tensor_bytes(plan, uid, uids, pointers, 2, &bytes));
    CHECK(bytes == 7 * 3 * 8 * 4);
  }
  lengths[0] = 0, lengths[1] = -5; /* nobody reads the offset of an entry without rows */
  offsets[0] = -1;
  CHECK_OK(heddle_plan_tensor_bytes(plan, 1, uids, pointers, 2, &bytes));
  CHECK(bytes == 0);
  lengths[0] = 1;
  CHECK_SENTENCE(heddle_plan_tensor_bytes(plan, 1, uids, pointers, 2, &bytes), HEDDLE_INVALID_VALUE,
                 "entry 0 at offset -1, expected 0 or more");
  CHECK_SENTENCE(heddle_plan_tensor_bytes(plan, 1, uids, pointers, 1, &bytes), HEDDLE_INVALID_VALUE,
                 "has no host memory");
  CHECK_SENTENCE(heddle_plan_tensor_bytes(plan, 99, uids, pointers, 2, &bytes),
                 HEDDLE_INVALID_VALUE, "no tensor with uid 99");
  CHECK_SENTENCE(heddle_plan_tensor_bytes(NULL, 1, uids, pointers, 2, &bytes), HEDDLE_INVALID_VALUE,
                 "null pointer for plan");
  CHECK_SENTENCE(heddle_plan_tensor_bytes(plan, 1, uids, pointers, 2, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for bytes");
  CHECK_SENTENCE(heddle_plan_tensor_bytes(plan, 1, NULL, pointers, 2, &bytes), HEDDLE_INVALID_VALUE,
                 "null pointer for uids");
  CHECK_SENTENCE(heddle_plan_tensor_bytes(plan, 1, uids, NULL, 2, &bytes), HEDDLE_INVALID_VALUE,
                 "null pointer for pointers");
  heddle_plan_free(plan);
}

/* Whether there is such a device; a machine without a GPU says so. */
static bool has_device(heddle_device device) {
  char byte = 0;
  void* memory = &memory;
  const heddle_status status = heddle_memory_allocate(device, 1, NULL, &memory);
  if (status == HEDDLE_OK) {
    CHECK_OK(heddle_memory_free(device, memory, NULL));
    return true;
  }
  CHECK(memory == NULL && device == HEDDLE_CUDA);
  CHECK(strstr(heddle_last_error(), "the NVIDIA driver") != NULL);
  CHECK(heddle_memory_copy_in(device, &byte, &byte, 1, NULL) == status);
  CHECK(heddle_memory_copy_out(device, &byte, &byte, 1, NULL) == status);
  CHECK(heddle_memory_free(device, &byte, NULL) == status);
  return false;
}

/* What was queued before an event is done when it is passed. */
static void test_events(heddle_device device) {
  int given = 7, found = 0;
  void* memory = NULL;
  heddle_event* event = NULL;
  bool passed = false;
  CHECK_OK(heddle_event_create(device, &event));
  CHECK_OK(heddle_event_is_passed(event, &passed));
  CHECK(passed);
  CHECK_OK(heddle_memory_allocate(device, sizeof given, NULL, &memory));
  CHECK_OK(heddle_memory_copy_in(device, memory, &given, sizeof given, NULL));
  CHECK_OK(heddle_memory_clear(device, memory, 1, NULL));
  CHECK_OK(heddle_event_record(event, NULL));
  CHECK_OK(heddle_event_wait(event));
  passed = false;
  CHECK_OK(heddle_event_is_passed(event, &passed));
  CHECK(passed);
  CHECK_OK(heddle_memory_copy_out(device, &found, memory, sizeof found, NULL));
  CHECK(found == 0);
  CHECK_OK(heddle_memory_free(device, memory, NULL));
  heddle_event_free(event);
  heddle_event_free(NULL);

  CHECK_SENTENCE(heddle_event_create(device, NULL), HEDDLE_INVALID_VALUE, "null pointer for event");
  event = (heddle_event*)&given;
  CHECK_SENTENCE(heddle_event_create((heddle_device)9, &event), HEDDLE_INVALID_VALUE, "9");
  CHECK(event == NULL);
  CHECK_SENTENCE(heddle_event_record(NULL, NULL), HEDDLE_INVALID_VALUE, "null pointer for event");
  CHECK_SENTENCE(heddle_event_is_passed(NULL, &passed), HEDDLE_INVALID_VALUE,
                 "null pointer for event");
  CHECK_SENTENCE(heddle_event_wait(NULL), HEDDLE_INVALID_VALUE, "null pointer for event");
}

/* Bytes go there and back, whole and in parts, and nothing beside them is written. */
static void test_memory(heddle_device device) {
  enum { BYTES = 100003, FROM = 17, PART = 1000 };
  static unsigned char given[BYTES], found[BYTES + 2];
  for (int i = 0; i < BYTES; ++i) given[i] = (unsigned char)(i * 7 + i / 256);
  memset(found, 0xA5, sizeof found);
  void *memory = NULL, *other = NULL;
  CHECK_OK(heddle_memory_allocate(device, BYTES, NULL, &memory));
  CHECK_OK(heddle_memory_allocate(device, BYTES, NULL, &other));
  CHECK(memory != NULL && other != NULL && memory != other && (uintptr_t)memory % 64 == 0);
  CHECK_OK(heddle_memory_copy_in(device, memory, given, BYTES, NULL));
  CHECK_OK(heddle_memory_copy_in(device, other, found, BYTES, NULL));
  CHECK_OK(heddle_memory_copy_in(device, (char*)memory + FROM, given, PART, NULL));
  CHECK_OK(heddle_memory_copy_out(device, found + 1, memory, BYTES, NULL));
  CHECK(found[0] == 0xA5 && found[BYTES + 1] == 0xA5);
  CHECK(memcmp(found + 1, given, FROM) == 0);
  CHECK(memcmp(found + 1 + FROM, given, PART) == 0);
  CHECK(memcmp(found + 1 + FROM + PART, given + FROM + PART, BYTES - FROM - PART) == 0);
  CHECK_OK(heddle_memory_copy_out(device, found + 1, (char*)memory + FROM, PART, NULL));
  CHECK(memcmp(found + 1, given, PART) == 0 && found[1 + PART] == found[PART + 1]);
  memset(found, 0xA5, sizeof found);
  CHECK_OK(heddle_memory_clear(device, (char*)memory + 1, BYTES - 2, NULL));
  CHECK_OK(heddle_memory_copy_out(device, found, memory, BYTES, NULL));
  CHECK(found[0] == given[0] && found[BYTES - 1] == given[BYTES - 1]);
  for (int i = 1; i < BYTES - 1; ++i) CHECK(found[i] == 0);
  CHECK_OK(heddle_memory_free(device, memory, NULL));
  CHECK_OK(heddle_memory_free(device, other, NULL));

  other = &memory;
  CHECK_OK(heddle_memory_allocate(device, 0, NULL, &other));
  CHECK(other == NULL);
  CHECK_OK(heddle_memory_free(device, NULL, NULL));
  CHECK_OK(heddle_memory_clear(device, NULL, 0, NULL));
  CHECK_OK(heddle_memory_copy_in(device, NULL, NULL, 0, NULL));
  CHECK_OK(heddle_memory_copy_out(device, NULL, NULL, 0, NULL));
  CHECK_SENTENCE(heddle_memory_allocate(device, 1, NULL, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for memory");
  const size_t hostile[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2, (size_t)1 << 56};
  for (int i = 0; i < 4; ++i) {
    other = &memory;
    CHECK_SENTENCE(heddle_memory_allocate(device, hostile[i], NULL, &other), HEDDLE_OUT_OF_MEMORY,
                   "has no memory for");
    CHECK(other == NULL);
  }
  CHECK_SENTENCE(heddle_memory_clear(device, NULL, 1, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for memory");
  CHECK_SENTENCE(heddle_memory_copy_in(device, NULL, given, 1, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for memory");
  CHECK_SENTENCE(heddle_memory_copy_in(device, given, NULL, 1, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for host");
  CHECK_SENTENCE(heddle_memory_copy_out(device, NULL, given, 1, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for host");
  CHECK_SENTENCE(heddle_memory_copy_out(device, found, NULL, 1, NULL), HEDDLE_INVALID_VALUE,
                 "null pointer for memory");
}

/* A plan runs in the device's memory alone: what it makes is that of the host's. */
static void test_execution_in_memory(const heddle_graph* graph, heddle_device device) {
  static float host[4][COUNT], expected[COUNT];
  heddle_plan* plan = NULL;
  void *pointers[4], *workspace = NULL;
  const int64_t uids[] = {1, 2, 3, 4};
  CHECK_OK(heddle_plan_create(graph, device, &plan));
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < COUNT; ++j) host[i][j] = (float)rand() / (float)RAND_MAX - 0.5f;
    CHECK_OK(heddle_memory_allocate(device, sizeof host[i], NULL, &pointers[i]));
    CHECK_OK(heddle_memory_copy_in(device, pointers[i], host[i], sizeof host[i], NULL));
  }
  const size_t bytes = heddle_plan_workspace_bytes(plan);
  CHECK_OK(heddle_memory_allocate(device, bytes, NULL, &workspace));
  CHECK_OK(heddle_plan_execute(plan, uids, pointers, 4, NULL, 0, workspace, NULL));
  CHECK_OK(heddle_memory_free(device, workspace, NULL));
  CHECK_OK(heddle_memory_copy_out(device, host[3], pointers[3], sizeof host[3], NULL));
  attention_by_hand(host[0], host[1], host[2], expected);
  for (int i = 0; i < COUNT; ++i) CHECK(fabsf(host[3][i] - expected[i]) < 1e-5f);
  for (int i = 0; i < 4; ++i) CHECK_OK(heddle_memory_free(device, pointers[i], NULL));
  heddle_plan_free(plan);
}

static void test_no_such_device(void) {
  const heddle_device none = (heddle_device)2;
  void* memory = &memory;
  CHECK_SENTENCE(heddle_memory_allocate(none, 1, NULL, &memory), HEDDLE_INVALID_VALUE,
                 "There is no device number 2");
  CHECK(memory == NULL);
  CHECK_SENTENCE(heddle_memory_free(none, NULL, NULL), HEDDLE_INVALID_VALUE, "device number 2");
  CHECK_SENTENCE(heddle_memory_clear(none, NULL, 0, NULL), HEDDLE_INVALID_VALUE, "device number 2");
  CHECK_SENTENCE(heddle_memory_copy_in(none, NULL, NULL, 0, NULL), HEDDLE_INVALID_VALUE,
                 "device number 2");
  CHECK_SENTENCE(heddle_memory_copy_out(none, NULL, NULL, 0, NULL), HEDDLE_INVALID_VALUE,
                 "device number 2");
}

static void test_default_device(bool has_gpu) {
  heddle_device device = (heddle_device)7;
  unsetenv("HEDDLE_DEVICE");
  CHECK_OK(heddle_default_device(&device));
  CHECK(device == (has_gpu ? HEDDLE_CUDA : HEDDLE_CPU));
  setenv("HEDDLE_DEVICE", "cpu", 1);
  CHECK_OK(heddle_default_device(&device));
  CHECK(device == HEDDLE_CPU);
  setenv("HEDDLE_DEVICE", "cuda", 1);
  if (has_gpu) {
    CHECK_OK(heddle_default_device(&device));
    CHECK(device == HEDDLE_CUDA);
  } else {
    CHECK_SENTENCE(heddle_default_device(&device), HEDDLE_CUDA_API_FAILED, "the NVIDIA driver");
    CHECK(device == HEDDLE_CPU);
  }
  setenv("HEDDLE_DEVICE", "tpu", 1);
  CHECK_SENTENCE(heddle_default_device(&device), HEDDLE_INVALID_VALUE,
                 "HEDDLE_DEVICE is 'tpu', expected cpu or cuda");
  unsetenv("HEDDLE_DEVICE");
  CHECK_SENTENCE(heddle_default_device(NULL), HEDDLE_INVALID_VALUE, "null pointer for device");
}

int main(void) {
  CHECK(strcmp(heddle_version(), "0.1.0") == 0);
  CHECK(strcmp(heddle_status_name(HEDDLE_INVALID_VALUE), "INVALID_VALUE") == 0);
  CHECK(strcmp(heddle_status_name((heddle_status)999), "UNKNOWN") == 0);
  CHECK(strcmp(heddle_last_error(), "") == 0);
  heddle_graph* graph = build_graph();
  test_execution(graph);
  test_execution_on_objects(graph);
  const heddle_device devices[] = {HEDDLE_CPU, HEDDLE_CUDA};
  for (int i = 0; i < 2; ++i) {
    if (!has_device(devices[i])) continue;
    test_memory(devices[i]);
    test_events(devices[i]);
    test_execution_in_memory(graph, devices[i]);
  }
  test_default_device(has_device(HEDDLE_CUDA));
  test_text(graph);
  test_score_expression();
  test_packed_bytes();
  test_packed_bytes_by_strides();
  test_refusals(graph);
  test_no_such_device();
  heddle_graph_free(graph);
  if (failures == 0) puts("all passed");
  return failures == 0 ? 0 : 1;
}
