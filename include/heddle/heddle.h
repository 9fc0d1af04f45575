/* Heddle's C interface: build or read a graph of attention ops, ask whether it is supported, plan
 * it, and run the plan on your own buffers.
 *
 * Conventions. Every function that can fail returns a heddle_status; heddle_last_error() then gives
 * one sentence saying what was given and what is allowed. Nothing is printed, no exception leaves
 * the library, and a null pointer where something is needed is a failure like any other. Strings
 * are UTF-8 and NUL-terminated unless a length goes with them. Functions are thread-safe as long as
 * no two threads change one graph; a plan is immutable and may be executed by many threads at once,
 * each with a workspace of its own. */
#ifndef HEDDLE_HEDDLE_H_
#define HEDDLE_HEDDLE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEDDLE_VERSION_MAJOR 0
#define HEDDLE_VERSION_MINOR 1
#define HEDDLE_VERSION_PATCH 0
#define HEDDLE_MAX_RANK 8

#if defined(__GNUC__)
#define HEDDLE_API __attribute__((visibility("default")))
#else
#define HEDDLE_API
#endif

/* ---- Errors
 * ------------------------------------------------------------------------------------------- */

/* In C++ the enumerations are ints, so that a value from outside the list is one that can be
 * refused. */
#ifdef __cplusplus
#define HEDDLE_AS_INT : int
#else
#define HEDDLE_AS_INT
#endif

typedef enum heddle_status HEDDLE_AS_INT {
  HEDDLE_OK = 0,
  HEDDLE_ATTRIBUTE_NOT_SET = 1,
  HEDDLE_SHAPE_DEDUCTION_FAILED = 2,
  HEDDLE_INVALID_TENSOR_NAME = 3,
  HEDDLE_INVALID_VARIANT_PACK = 4,
  HEDDLE_GRAPH_NOT_SUPPORTED = 5,
  HEDDLE_GRAPH_EXECUTION_PLAN_CREATION_FAILED = 6,
  HEDDLE_GRAPH_EXECUTION_FAILED = 7,
  HEDDLE_HEURISTIC_QUERY_FAILED = 8,
  HEDDLE_UNSUPPORTED_GRAPH_FORMAT = 9,
  HEDDLE_CUDA_API_FAILED = 10,
  HEDDLE_INVALID_CUDA_DEVICE = 11,
  HEDDLE_HANDLE_ERROR = 12,
  HEDDLE_INVALID_VALUE = 13,
  HEDDLE_NVRTC_COMPILATION_FAILED = 14,
  HEDDLE_MALFORMED_INPUT = 15, /* a text that does not parse; the sentence says line and column */
  HEDDLE_OUT_OF_MEMORY = 16,
  HEDDLE_IO_FAILED = 17
} heddle_status;

/* The sentence of the last failure in the calling thread; "" if there was none. Valid until the
 * thread's next call into the library. */
HEDDLE_API const char* heddle_last_error(void);
/* The status in upper case, "INVALID_VALUE". */
HEDDLE_API const char* heddle_status_name(heddle_status status);
/* "0.1.0". */
HEDDLE_API const char* heddle_version(void);

/* ---- Graphs
 * ------------------------------------------------------------------------------------------- */

typedef enum heddle_dtype HEDDLE_AS_INT {
  HEDDLE_DTYPE_UNSET =
      0, /* taken from the graph: its io type, or its intermediate type if virtual */
  HEDDLE_F64 = 1,
  HEDDLE_F32 = 2,
  HEDDLE_BF16 = 3,
  HEDDLE_F16 = 4,
  HEDDLE_F8E4M3 = 5,
  HEDDLE_F8E5M2 = 6,
  HEDDLE_I64 = 7,
  HEDDLE_I32 = 8,
  HEDDLE_I8 = 9,
  HEDDLE_U64 = 10,
  HEDDLE_U32 = 11,
  HEDDLE_U8 = 12,
  HEDDLE_BOOLEAN = 13
} heddle_dtype;

/* A tensor. Zero-initialise it, then set what applies; uid must be set and unlike any other of the
 * graph. */
typedef struct heddle_tensor {
  int64_t uid; /* not 0 */
  const char*
      name; /* for sentences; may be null. heddle_graph_tensor lends the graph's own string */
  heddle_dtype dtype;
  int32_t rank;        /* of dims; 0: inferred */
  int32_t stride_rank; /* of strides; 0: inferred */
  int64_t dims[HEDDLE_MAX_RANK];
  int64_t strides[HEDDLE_MAX_RANK]; /* in elements */
  bool is_virtual;                  /* an intermediate that nobody binds */
  bool pass_by_value; /* a scalar in host memory, read before heddle_plan_execute returns */
  bool has_constant;  /* a scalar known now, never bound: `constant` */
  double constant;
  int64_t ragged_offset;            /* uid of its [B+1,1,1,1] element offsets; 0: none */
  int64_t ragged_offset_multiplier; /* 0 means 1 */
} heddle_tensor;

typedef struct heddle_graph heddle_graph;

/* An empty graph. `name` may be null; types may be HEDDLE_DTYPE_UNSET. */
HEDDLE_API heddle_status heddle_graph_create(const char* name, heddle_dtype io,
                                             heddle_dtype intermediate, heddle_dtype compute,
                                             heddle_graph** graph);
/* A graph from its text form (JSON; docs/graph-text-form.md). Checks the form only. */
HEDDLE_API heddle_status heddle_graph_parse(const char* text, size_t length, heddle_graph** graph);
/* Null is allowed. */
HEDDLE_API void heddle_graph_free(heddle_graph* graph);

HEDDLE_API heddle_status heddle_graph_add_tensor(heddle_graph* graph, const heddle_tensor* tensor);
/* Adds a node: op is "sdpa", "sdpa_backward", "sdpa_fp8", "sdpa_fp8_backward", "rope",
 * "rope_backward", "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward",
 * "instance_norm", "instance_norm_backward", "batch_norm", "batch_norm_backward", "cache_append" or
 * "pointwise"; name may be null. *node is its number for the calls below.
 */
HEDDLE_API heddle_status heddle_graph_add_node(heddle_graph* graph, const char* op,
                                               const char* name, int32_t* node);
/* Set one port or attribute of a node by its name in the text form, a dot leading into a group:
 * "q", "attn_scale", "dropout.seed", "score_mod.score_in"; "score_mod.ops.swish_beta" is that of
 * the op appended last. set_integer also sets numbers. docs/graph-text-form.md has each op's fields
 * with their dims and types; the sentence of a name that an op does not have lists those it has. */
HEDDLE_API heddle_status heddle_node_set_tensor(heddle_graph* graph, int32_t node,
                                                const char* field, int64_t uid);
HEDDLE_API heddle_status heddle_node_set_number(heddle_graph* graph, int32_t node,
                                                const char* field, double value);
HEDDLE_API heddle_status heddle_node_set_integer(heddle_graph* graph, int32_t node,
                                                 const char* field, int64_t value);
HEDDLE_API heddle_status heddle_node_set_flag(heddle_graph* graph, int32_t node, const char* field,
                                              bool value);
/* An enumeration: "diagonal_alignment" to "bottom_right", "pairing" to "interleaved", "mode" to
 * "add". */
HEDDLE_API heddle_status heddle_node_set_choice(heddle_graph* graph, int32_t node,
                                                const char* field, const char* value);
HEDDLE_API heddle_status heddle_node_set_dims(heddle_graph* graph, int32_t node, const char* field,
                                              const int64_t* dims, int32_t rank);
/* Appends a pointwise op ("add", "tanh_fwd", "cmp_ge", "gen_index", ...) to a score expression,
 * which is "score_mod" or "score_mod_bprop". `axis` is gen_index's. */
HEDDLE_API heddle_status heddle_node_add_pointwise(heddle_graph* graph, int32_t node,
                                                   const char* expression, const char* op,
                                                   const int64_t* input_uids, int32_t inputs,
                                                   int64_t output_uid, int32_t axis);

/* Infers what is unset and checks every rule of the ops' contracts; on failure the graph is
 * unchanged. */
HEDDLE_API heddle_status heddle_graph_validate(heddle_graph* graph);
/* What the graph knows of a tensor, after validation with everything inferred. */
HEDDLE_API heddle_status heddle_graph_tensor(const heddle_graph* graph, int64_t uid,
                                             heddle_tensor* tensor);
/* The text form on one line. *text is the graph's, until it is next asked for, changed or freed. */
HEDDLE_API heddle_status heddle_graph_text(heddle_graph* graph, const char** text);

/* ---- GroupQueryAttention
 * ------------------------------------------------------------------------------------------- */

/* The operator com.microsoft.GroupQueryAttention as ONNX Runtime has it, in its order: one node's
 * inputs, the outputs wanted, and its attributes. The graph's tensors are bound by uid 1 + input
 * and 101 + output, in the node's own memory; HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH is never bound. */
enum {
  HEDDLE_GQA_QUERY = 0, /* [B, S, N*H]; without key and value [B, S, (N+2Nk)*H], packed */
  HEDDLE_GQA_KEY = 1,   /* [B, S, Nk*H]; of length 0: another layer's cache, the past, is shared */
  HEDDLE_GQA_VALUE = 2,
  HEDDLE_GQA_PAST_KEY = 3, /* [B, Nk, P, H], of int4 H/2 bytes; may be bound to present's address */
  HEDDLE_GQA_PAST_VALUE = 4,
  HEDDLE_GQA_SEQLENS_K = 5, /* i32 [B]: place of the last token, on the device */
  HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH = 6,
  HEDDLE_GQA_COS_CACHE = 7, /* [rows, up to H/2] */
  HEDDLE_GQA_SIN_CACHE = 8,
  HEDDLE_GQA_POSITION_IDS = 9,    /* i64 [B, S or more] */
  HEDDLE_GQA_ATTENTION_BIAS = 10, /* [B or 1, N or 1, S, total] */
  HEDDLE_GQA_HEAD_SINK = 11,      /* [N] */
  HEDDLE_GQA_K_SCALE = 12,        /* f32, one or Nk*H */
  HEDDLE_GQA_V_SCALE = 13,
  HEDDLE_GQA_Q_NORM_WEIGHT = 14, /* [H] */
  HEDDLE_GQA_K_NORM_WEIGHT = 15,
  HEDDLE_GQA_QUERY_SEQLENS = 16, /* i32 [B]: new tokens of each entry, the rest of S is padding */
  HEDDLE_GQA_INPUTS = 17
};
enum {
  HEDDLE_GQA_OUTPUT = 0,      /* [B, S, N*H] */
  HEDDLE_GQA_PRESENT_KEY = 1, /* [B, Nk, max(total, P) or, windowed, P, H] */
  HEDDLE_GQA_PRESENT_VALUE = 2,
  HEDDLE_GQA_OUTPUT_QK = 3,
  HEDDLE_GQA_OUTPUTS = 4
};

typedef struct heddle_gqa_tensor {
  heddle_dtype dtype; /* HEDDLE_DTYPE_UNSET: the node has no such input */
  int32_t rank;
  int64_t dims[HEDDLE_MAX_RANK];
} heddle_gqa_tensor;

typedef struct heddle_gqa {
  heddle_gqa_tensor inputs[HEDDLE_GQA_INPUTS];
  bool wanted[HEDDLE_GQA_OUTPUTS];
  int64_t total_sequence_length; /* what the input holds; lengths are those of seqlens_k */
  int64_t num_heads, kv_num_heads;
  double scale;   /* 0: 1/sqrt(H) */
  double softcap; /* 0: none */
  int64_t causal;
  int64_t local_window_size; /* -1: none */
  int64_t sliding_window_cache;
  int64_t do_rotary, rotary_interleaved;
  int64_t smooth_softmax, qk_output;
  double qk_norm_epsilon;
  double q_norm_epsilon, k_norm_epsilon;   /* 0: qk_norm_epsilon */
  const char *k_quant_type, *v_quant_type; /* "NONE", "PER_TENSOR", "PER_CHANNEL"; null is none */
  int64_t kv_cache_bit_width;
} heddle_gqa;

/* The operator's defaults, no inputs, and all outputs but output_qk. */
HEDDLE_API void heddle_gqa_set_defaults(heddle_gqa* op);
/* The validated graph of the node, a cache_append and an sdpa; or the sentence that the operator's
 * users know. Any batch may have prompts, chunks and single tokens. */
HEDDLE_API heddle_status heddle_gqa_create(const heddle_gqa* op, heddle_graph** graph);

/* ---- Plans
 * -------------------------------------------------------------------------------------------- */

typedef enum heddle_device HEDDLE_AS_INT { HEDDLE_CPU = 0, HEDDLE_CUDA = 1 } heddle_device;

/* Where a program that names no device runs: where the variable HEDDLE_DEVICE says, "cpu" or
 * "cuda", else on an NVIDIA GPU where there is one, else on the CPU. Fails if the variable says
 * something else, or there is no GPU where it says "cuda". */
HEDDLE_API heddle_status heddle_default_device(heddle_device* device);

typedef struct heddle_plan heddle_plan;

/* HEDDLE_OK if the device's engines can run the graph; otherwise the sentence gives each engine's
 * reason. */
HEDDLE_API heddle_status heddle_graph_supported(const heddle_graph* graph, heddle_device device);
/* Validates a copy of the graph and plans it. The plan does not need the graph any more. */
HEDDLE_API heddle_status heddle_plan_create(const heddle_graph* graph, heddle_device device,
                                            heddle_plan** plan);
/* The same for NVIDIA GPUs of an architecture, "sm_80", "sm_90a", ..., none of which has to be
 * here: what such a device would take, its workspace too, and what its engine would refuse. The
 * plan describes and runs nothing: heddle_plan_execute fails with HEDDLE_INVALID_CUDA_DEVICE. */
HEDDLE_API heddle_status heddle_plan_create_for(const heddle_graph* graph, const char* architecture,
                                                heddle_plan** plan);
/* Null is allowed. Waits for nothing: what the plan queued on a GPU runs on, and a CUDA graph that
 * captured an execution may run afterwards, while the buffers and the workspace are there. Kernels
 * stay loaded until the process ends, for the plans to come that run them. */
HEDDLE_API void heddle_plan_free(heddle_plan* plan);

/* Bytes of workspace that execution needs, of any alignment; 0 for a null plan. A function of the
 * graph alone, and on a GPU of the architecture: not of how many cores or multiprocessors there
 * are. On a CPU it has room for machines of many cores, of which fewer write to a part alone. */
HEDDLE_API size_t heddle_plan_workspace_bytes(const heddle_plan* plan);
/* The uids to bind, ascending. The arrays are the plan's own. An XLA custom call takes its operands
 * and gives its results in these orders. */
HEDDLE_API heddle_status heddle_plan_inputs(const heddle_plan* plan, const int64_t** uids,
                                            size_t* count);
HEDDLE_API heddle_status heddle_plan_outputs(const heddle_plan* plan, const int64_t** uids,
                                             size_t* count);
/* A bound tensor with everything inferred; the name is the plan's own string. */
HEDDLE_API heddle_status heddle_plan_tensor(const heddle_plan* plan, int64_t uid,
                                            heddle_tensor* tensor);
/* Bytes that a bound tensor takes, from its first element to past its last. Of a packed tensor it
 * is to past the last row of an entry, as offsets and lengths say at an execution: pointers[i] is
 * the memory of the tensor uids[i], of these tensors in the host's memory; others are not read. */
HEDDLE_API heddle_status heddle_plan_tensor_bytes(const heddle_plan* plan, int64_t uid,
                                                  const int64_t* uids, void* const* pointers,
                                                  size_t count, size_t* bytes);
/* The engine that runs the plan, "cpu"; "" for a null plan. The string is the library's own. */
HEDDLE_API const char* heddle_plan_engine(const heddle_plan* plan);
/* For people: a line for each step. The string is the plan's own; "" for a null plan. */
HEDDLE_API const char* heddle_plan_description(const heddle_plan* plan);
/* For people: of each attention's forward the path that serves it, decode, flash or
 * memory_efficient, and why: "flash: ...", one after the other; docs/gqa.md has what they are, and
 * what of the environment switches them off. "" if there is none, and for a null plan. The string
 * is the plan's own. */
HEDDLE_API const char* heddle_plan_attention_paths(const heddle_plan* plan);

/* The shape that a bound tensor has at one execution. */
typedef struct heddle_shape {
  int64_t uid;
  int32_t rank;                     /* of dims: the planned tensor's */
  int32_t stride_rank;              /* of strides; 0: the plan's, memory laid out for its dims */
  int64_t dims[HEDDLE_MAX_RANK];    /* none larger than the plan's */
  int64_t strides[HEDDLE_MAX_RANK]; /* in elements */
} heddle_shape;

/* Runs the plan: pointers[i] is the memory of the tensor uids[i], in the device's memory
 * (pass-by-value scalars: the host's). Uids the plan does not bind are ignored. `stream` is a
 * CUstream on a GPU and ignored on the CPU. Everything is checked before anything is written.
 *
 * The dims of the plan are maxima: batch and lengths may be less at an execution, which `shapes`
 * (null if shape_count is 0) then says. An input that it leaves out has the plan's dims, an output
 * those that follow; an intermediate follows as well. Heads and head dims are the plan's. The
 * result is that of a plan made for these shapes, in the plan's workspace; nothing is compiled, and
 * shapes that would take other kernels than the plan's are refused. What the last few shapes take
 * is kept. Allocates nothing unless it fails or shapes are new. */
HEDDLE_API heddle_status heddle_plan_execute(const heddle_plan* plan, const int64_t* uids,
                                             void* const* pointers, size_t count,
                                             const heddle_shape* shapes, size_t shape_count,
                                             void* workspace, void* stream);

/* ---- Device memory
 * ------------------------------------------------------------------------------------------ */

/* For programs that have no allocator of their own: memory that plans of the device read and write.
 * On a GPU it is the memory of the device of the calling thread's current context; a thread that
 * has none is given the primary context of device 0, as CUDA's runtime does, and may then execute
 * plans. `stream` is a CUstream there, null the default one, and ignored on the CPU; one that is
 * being captured into a CUDA graph is refused. */

/* Memory for what is queued on `stream` from now on, aligned to 64 bytes on a CPU, to 256 on a GPU,
 * its contents anything; *memory is null for 0 bytes, and if it fails. A GPU's comes from a pool of
 * the library's, which keeps up to 1 GiB of what is freed for allocations to come. */
HEDDLE_API heddle_status heddle_memory_allocate(heddle_device device, size_t bytes, void* stream,
                                                void** memory);
/* Gives back what heddle_memory_allocate gave, after what is queued on `stream` by now; what other
 * streams do with it has to have ended. Null is allowed. */
HEDDLE_API heddle_status heddle_memory_free(heddle_device device, void* memory, void* stream);
/* Makes them zeros, after what is queued on `stream` by now; on a GPU it returns before that. */
HEDDLE_API heddle_status heddle_memory_clear(heddle_device device, void* memory, size_t bytes,
                                             void* stream);
/* Copies host memory to the device's, after what is queued on `stream`. When it returns, the copy
 * has been made. Any part of an allocation may be copied; 0 bytes need no pointers. */
HEDDLE_API heddle_status heddle_memory_copy_in(heddle_device device, void* memory, const void* host,
                                               size_t bytes, void* stream);
/* Copies the device's memory to the host's in the same way: it waits for what is queued on
 * `stream`, and says if any of that failed. */
HEDDLE_API heddle_status heddle_memory_copy_out(heddle_device device, void* host,
                                                const void* memory, size_t bytes, void* stream);

/* ---- Events
 * ------------------------------------------------------------------------------------------ */

/* Points of a stream: how programs without the device's own interface know what it has done. On a
 * CPU, whose work is done when a call returns, an event is passed always. A GPU's is of the device
 * of the context that made it. One thread at a time may record it; any may ask and wait. */
typedef struct heddle_event heddle_event;

/* An event that is passed, as one that was never recorded is; *event is null if it fails. */
HEDDLE_API heddle_status heddle_event_create(heddle_device device, heddle_event** event);
/* From now on it is passed once all that is queued on `stream` by now is done; returns before. A
 * stream that is being captured into a CUDA graph is refused. */
HEDDLE_API heddle_status heddle_event_record(heddle_event* event, void* stream);
/* Whether it is passed; waits for nothing. Says if what it waits for failed. */
HEDDLE_API heddle_status heddle_event_is_passed(const heddle_event* event, bool* passed);
/* Returns once it is passed, or with what failed. */
HEDDLE_API heddle_status heddle_event_wait(const heddle_event* event);
/* Null is allowed, and an event that is not passed. */
HEDDLE_API void heddle_event_free(heddle_event* event);

/* ---- HLO modules
 * ------------------------------------------------------------------------------------------ */

typedef struct heddle_fused_module heddle_fused_module;

/* Finds attention in a serialized HloModuleProto, forward and backward, and lets custom calls of
 * target "heddle" compute it on `device`. What cannot be proved to stay the same is left alone,
 * with the reason in the report. Any thread may call it, many at once. Fails if the bytes are no
 * module, or one that is scheduled already; the module is then to be used as it is. */
HEDDLE_API heddle_status heddle_fuse_module(const void* module, size_t size, heddle_device device,
                                            heddle_fused_module** fused);
/* Null is allowed. */
HEDDLE_API void heddle_fused_module_free(heddle_fused_module* fused);
/* The rewritten module, serialized; null and a size of 0 if nothing was fused. Fields that Heddle
 * does not know are those of the given module, and the entry computation carries the layouts that
 * the module declares. The bytes are the result's own. */
HEDDLE_API const void* heddle_fused_module_bytes(const heddle_fused_module* fused, size_t* size);
/* What was fused and what was not, and why, as JSON; "" for a null pointer. The string is the
 * result's own. */
HEDDLE_API const char* heddle_fused_module_report(const heddle_fused_module* fused);

/* ---- XLA
 * ---------------------------------------------------------------------------------------------- */

struct XLA_FFI_Api;
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

/* The typed-FFI handler of custom-call target "heddle" for the platform "cpu" (Host). The call's
 * attribute `graph` is the text form; operands are the graph's inputs and results its outputs, both
 * in ascending uid, and one more result of u8 is the workspace, of heddle_plan_workspace_bytes
 * bytes. */
HEDDLE_API struct XLA_FFI_Error* heddle_xla_ffi_handler(struct XLA_FFI_CallFrame* frame);
/* The same for the platform "CUDA". */
HEDDLE_API struct XLA_FFI_Error* heddle_xla_ffi_handler_cuda(struct XLA_FFI_CallFrame* frame);
/* Registers the handlers as "heddle" for "Host" and "CUDA" with a running XLA; 0 on success, else
 * the number of registrations that failed (the sentence is heddle_last_error's). */
HEDDLE_API int heddle_xla_register_all(const struct XLA_FFI_Api* api);

/* ---- Python
 * ------------------------------------------------------------------------------------------- */

/* The Python that a call comes from, and the library whose arrays it has. Of Python's C interface
 * the functions named; none is linked, so that one library serves every Python. */
typedef struct heddle_python {
  void* (*tuple_item)(void* tuple, ptrdiff_t index); /* PyTuple_GetItem */
  void* (*type_of)(void* object);                    /* PyObject_Type */
  void (*release)(void* object);                     /* Py_DecRef */
  void (*clear_error)(void);                         /* PyErr_Clear */
  void* (*let_others_run)(void);                     /* PyEval_SaveThread */
  void (*run_again)(void* state);                    /* PyEval_RestoreThread */
  void*
      array_type; /* the type of the arrays: objects of another, a derived one too, are not read */
  /* dltensor_from_py_object_no_sync of the type's DLPackExchangeAPI (DLPack 1.3 on) */
  int (*read_array)(void* array, void* dl_tensor);
} heddle_python;

/* What an array has to be for a tensor of a plan. */
typedef struct heddle_python_array {
  heddle_dtype dtype;
  heddle_device device; /* HEDDLE_CPU for pass-by-value scalars */
  int64_t elements;     /* that it has to reach over, from the first to past the last */
} heddle_python_array;

/* An execution of a plan on arrays; its pointers are read at each one, nothing is kept. */
typedef struct heddle_python_call {
  const heddle_python* python;
  const heddle_plan* plan;
  const int64_t* uids;
  const heddle_python_array* arrays; /* of each uid */
  size_t count;
  heddle_device device; /* of the workspace */
  size_t workspace_bytes;
} heddle_python_call;

/* heddle_plan_execute on the arrays in a tuple, in the order of call->uids, with an array of whole
 * bytes without gaps as the workspace. The caller holds the interpreter's lock, which is free while
 * the plan runs. -1 if an object is not an array of that type or not one of what is expected, or
 * something is null: then nothing has been executed, and no sentence says why; else the
 * heddle_status of the execution. */
HEDDLE_API int heddle_python_execute(const heddle_python_call* call, void* tuple, void* workspace,
                                     void* stream);

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_HEDDLE_H_ */
