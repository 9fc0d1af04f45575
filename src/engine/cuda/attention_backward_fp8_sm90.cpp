#include "engine/cuda/attention_backward_fp8_sm90.h"

#include <string_view>

#include "core/rounding.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/config_source.h"
#include "engine/cuda/parameter_block.h"
#include "engine/cuda/tensor_map.h"
#include "sm90/fp8_backward_arguments.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::AttentionBackwardStructure;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::Fp8AttentionBackwardProblem;
using problem::Fp8AttentionBackwardStructure;
using problem::kAbsent;
using problem::OperandId;

constexpr const char *kPrepareName = "fp8_backward_prepare", *kMainName = "attention_backward_fp8",
                     *kFinishName = "fp8_backward_finish";
constexpr int kDim = 128;

Status refuse(std::string_view what) {
  return error(Code::graph_not_supported, "cuda: the Hopper backward of fp8 {}", what);
}

Status check(const Fp8AttentionBackwardProblem& problem) {
  const AttentionBackwardStructure& structure = problem.structure.attention;
  const AttentionStructure& s = structure.forward;
  const problem::AttentionFacts facts = problem::facts_of(problem);
  for (const problem::NamedOperand& one : problem::tensors_of(structure)) {
    HEDDLE_TRY(check_dtype(s, one.id, one.name, {DataType::f8e4m3}));
    if (s.type(one.id).storage.kind != problem::Storage::Kind::dense)
      return error(Code::graph_not_supported,
                   "cuda: sdpa_fp8_backward {} is not dense, which the Hopper kernel expects",
                   one.name);
    HEDDLE_TRY(check_copies(s, facts, one.id));
  }
  if (s.qk_head_dim != kDim || s.v_head_dim != kDim)
    return error(Code::graph_not_supported,
                 "cuda: sdpa_fp8_backward head dims are {} (q, k) and {} (v); the Hopper kernel "
                 "takes {}",
                 s.qk_head_dim, s.v_head_dim, kDim);
  // Past an end codes may be no numbers, which 0 does not hide.
  if (s.q_lengths != kAbsent || s.kv_lengths != kAbsent) return refuse("takes no lengths");
  return {};
}

/// The attention that the kernels of 16 bits would be of, with sums as results.
AttentionBackwardProblem in_16_bits(const Fp8AttentionBackwardProblem& problem) {
  AttentionBackwardProblem attention{problem.structure.attention, problem.sizes};
  AttentionStructure& s = attention.structure.forward;
  for (const OperandId id : {s.q, s.k, s.v, s.o, attention.structure.d_o})
    s.type(id).dtype = DataType::bf16;
  for (const OperandId id :
       {attention.structure.d_q, attention.structure.d_k, attention.structure.d_v})
    if (id != kAbsent) s.type(id).dtype = DataType::f32;
  return attention;
}

std::string source(const BackwardSm90Config& config, const char* include, const std::string& body,
                   const char* arguments, size_t bytes, int threads, const char* name,
                   const char* run) {
  return fmt::format(
      "#include \"sm90/attention_backward_fp8.cuh\"\n"
      "{}"
      "namespace heddle {{\n"
      "{}"
      "using Main = sm90::AttentionBackwardFp8<Config>;\n"
      "{}"
      "static_assert(sizeof(sm90::{}) == {}, \"as the host passes them\");\n"
      "}}  // namespace heddle\n"
      "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
      "{}(const __grid_constant__ heddle::sm90::{} arguments) {{\n"
      "  heddle::{}(arguments);\n"
      "}}\n",
      include, config_source<sm90::BackwardConfig>(config), body, arguments, bytes, threads, name,
      arguments, run);
}

KernelUnit main_unit(const BackwardSm90Config& config) {
  return {kMainName,
          source(config, "", "", "Fp8BackwardArguments", sizeof(sm90::Fp8BackwardArguments),
                 config.threads(), kMainName, "Main::run"),
          summary_of<sm90::BackwardConfig>(config)};
}

KernelUnit rows_unit(const BackwardSm90Config& config, const char* name, const char* run) {
  return {name,
          source(config, "#include \"sm90/fp8_backward_rows.cuh\"\n",
                 "using Rows = sm90::Fp8BackwardRows<Main>;\n", "Fp8BackwardRowsArguments",
                 sizeof(sm90::Fp8BackwardRowsArguments), kBackwardSm90RowThreads, name, run),
          {}};
}

/// In bytes; what the passes of 16 bits have, then what fp8 adds.
struct Workspace {
  BackwardSm90Workspace rows;
  int64_t units = 0, wide_q = 0, wide_d_o = 0, bytes = 0;
};

struct Planned {
  size_t prepare = 0, main = 0, finish = 0;
  Launch prepare_launch, main_launch, finish_launch;
  sm90::Fp8BackwardArguments arguments{};
  sm90::Fp8BackwardRowsArguments rows{};
  std::vector<Entry> entries, rows_entries;
  MapShape q, k, v, d_o, wide;
  OperandId q_id = kAbsent, k_id = kAbsent, v_id = kAbsent, d_o_id = kAbsent;
  std::vector<problem::NamedOperand> aligned;
  Workspace workspace;
};

class Fp8BackwardLaunches final : public Launches {
 public:
  explicit Fp8BackwardLaunches(Planned planned) : planned_(std::move(planned)) {}

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(check_addresses(planned_.aligned, at.buffers));
    sm90::Fp8BackwardArguments arguments = planned_.arguments;
    bind_entries(planned_.entries, at.buffers, &arguments);
    sm90::Fp8BackwardRowsArguments rows = planned_.rows;
    bind_entries(planned_.rows_entries, at.buffers, &rows);
    const Workspace& workspace = planned_.workspace;
    arguments.negative_lse = reinterpret_cast<float*>(at.workspace + workspace.rows.negative_lse);
    arguments.delta = reinterpret_cast<float*>(at.workspace + workspace.rows.delta);
    arguments.d_q_sum = reinterpret_cast<float*>(at.workspace + workspace.rows.d_q_sum);
    arguments.turns = reinterpret_cast<int*>(at.workspace + workspace.rows.turns);
    static_cast<sm90::BackwardWorkspace&>(rows) = arguments;
    rows.units = reinterpret_cast<sm90::Fp8BackwardUnits*>(at.workspace + workspace.units);
    arguments.units = rows.units;
    rows.wide_q = reinterpret_cast<unsigned short*>(at.workspace + workspace.wide_q);
    rows.wide_d_o = reinterpret_cast<unsigned short*>(at.workspace + workspace.wide_d_o);
    rows.amax = arguments.amax;
    const auto of = [&](OperandId id) { return at.buffers[static_cast<size_t>(id)]; };
    HEDDLE_TRY(encode(at.driver, planned_.q, of(planned_.q_id), arguments.q));
    HEDDLE_TRY(encode(at.driver, planned_.k, of(planned_.k_id), arguments.k));
    HEDDLE_TRY(encode(at.driver, planned_.v, of(planned_.v_id), arguments.v));
    HEDDLE_TRY(encode(at.driver, planned_.d_o, of(planned_.d_o_id), arguments.d_o));
    HEDDLE_TRY(encode(at.driver, planned_.wide, rows.wide_q, arguments.wide_q));
    HEDDLE_TRY(encode(at.driver, planned_.wide, rows.wide_d_o, arguments.wide_d_o));
    int* const first_batch = &rows.problem.forward.first_batch;
    HEDDLE_TRY(at.launch(planned_.prepare, planned_.prepare_launch, &rows, first_batch));
    HEDDLE_TRY(at.launch(planned_.main, planned_.main_launch, &arguments));
    if (rows.problem.d_q.data == nullptr) return {};
    return at.launch(planned_.finish, planned_.finish_launch, &rows, first_batch);
  }

 private:
  const Planned planned_;
};

void fill(Planned& planned, const Fp8AttentionBackwardStructure& s, const AttentionSizes& z) {
  const AttentionBackwardStructure& attention = s.attention;
  ParameterBlock block(&planned.arguments, attention.forward, z);
  fill_backward(block, planned.arguments.problem, attention, z, {});
  // Of a gradient that is not written there is none.
  sm90::Fp8BackwardAmax& amax = planned.arguments.amax;
  if (attention.d_q != kAbsent) block.pointer(amax.d_q, s.amax_d_q);
  if (attention.d_k != kAbsent) block.pointer(amax.d_k, s.amax_d_k);
  if (attention.d_v != kAbsent) block.pointer(amax.d_v, s.amax_d_v);
  block.pointer(amax.d_p, s.amax_d_p);
  planned.entries = std::move(block.entries);

  sm90::Fp8BackwardRowsArguments& rows = planned.rows;
  ParameterBlock of_rows(&rows, attention.forward, z);
  fill_backward(of_rows, rows.problem, attention, z, {});
  of_rows.pointer(rows.descale_q, s.descale_q);
  of_rows.pointer(rows.descale_k, s.descale_k);
  of_rows.pointer(rows.descale_v, s.descale_v);
  of_rows.pointer(rows.descale_o, s.descale_o);
  of_rows.pointer(rows.descale_d_o, s.descale_d_o);
  of_rows.pointer(rows.descale_s, s.descale_s);
  of_rows.pointer(rows.descale_d_p, s.descale_d_p);
  of_rows.pointer(rows.scale_s, s.scale_s);
  of_rows.pointer(rows.scale_d_p, s.scale_d_p);
  of_rows.pointer(rows.scale_d_q, s.scale_d_q);
  of_rows.pointer(rows.scale_d_k, s.scale_d_k);
  of_rows.pointer(rows.scale_d_v, s.scale_d_v);
  planned.rows_entries = std::move(of_rows.entries);
}

Workspace workspace_of_fp8(const AttentionBackwardProblem& attention,
                           const BackwardSm90Config& config) {
  const AttentionSizes& z = attention.sizes;
  const int64_t wide = round_up(z.batch * z.q_heads * z.q_length * kDim * 2, 256);
  Workspace at;
  at.rows = workspace_of(attention, config);
  at.units = at.rows.bytes;
  at.wide_q = at.units + 256;
  at.wide_d_o = at.wide_q + wide;
  at.bytes = at.wide_d_o + wide;
  return at;
}

}  // namespace

Result<Lowering> lower_backward_fp8_sm90(const Fp8AttentionBackwardProblem& problem,
                                         const Target& target) {
  if (!target.is_hopper())
    return error(Code::graph_not_supported, "cuda: {} is no Hopper", target.architecture);
  HEDDLE_TRY(check(problem));
  const AttentionBackwardProblem attention = in_16_bits(problem);
  HEDDLE_ASSIGN(BackwardSm90Config config, configure_backward_sm90(attention));
  config.codes = true;
  config.result = Element::f8e4m3;
  const AttentionStructure& s = attention.structure.forward;
  const AttentionSizes& z = problem.sizes;

  Planned planned;
  Lowering lowering;
  planned.main = lowering.add_kernel(main_unit(config), config.threads(), config.shared_bytes());
  planned.prepare = lowering.add_kernel(rows_unit(config, kPrepareName, "Rows::prepare"),
                                        kBackwardSm90RowThreads);
  for (const auto& [name, launch] : launches_of_backward_sm90(attention, config)) {
    const std::string_view of = name;  // equal literals need not be at one address
    if (of == kBackwardSm90Names[0]) planned.prepare_launch = launch;
    if (of == kBackwardSm90Names[1]) planned.main_launch = launch;
    if (of == kBackwardSm90Names[2]) {
      planned.finish = lowering.add_kernel(rows_unit(config, kFinishName, "Rows::finish"),
                                           kBackwardSm90RowThreads);
      planned.finish_launch = launch;
    }
  }
  fill(planned, problem.structure, z);
  for (sm90::BackwardWorkspace* const at :
       {static_cast<sm90::BackwardWorkspace*>(&planned.arguments),
        static_cast<sm90::BackwardWorkspace*>(&planned.rows)}) {
    at->q_rounded = static_cast<int>(config.q_rounded);
    at->head_group = config.head_group;
  }
  planned.q_id = s.q, planned.k_id = s.k, planned.v_id = s.v;
  planned.d_o_id = attention.structure.d_o;
  planned.q = map_shape_of_bytes(z.layout(s.q), config.tile_m);
  planned.k = map_shape_of_bytes(z.layout(s.k), config.tile_n());
  planned.v = map_shape_of_bytes(z.layout(s.v), config.tile_n());
  planned.d_o = map_shape_of_bytes(z.layout(attention.structure.d_o), config.tile_m);
  planned.aligned = problem::tensors_of(attention.structure);
  problem::OperandLayout wide;
  wide.dims = {z.batch, z.q_heads, z.q_length, 2 * kDim};
  wide.strides = *dense_strides(wide.dims);
  planned.wide = map_shape_of_bytes(wide, config.tile_m);
  planned.workspace = workspace_of_fp8(attention, config);
  lowering.workspace_bytes = planned.workspace.bytes;
  lowering.description = fmt::format(
      "fp8 attention backward, Hopper kernels, {} x {} tiles, queries widened before{}, {}",
      config.tile_m, config.tile_n(), config.deterministic ? ", in a fixed order" : "",
      target.architecture);
  lowering.launches = std::make_shared<const Fp8BackwardLaunches>(std::move(planned));
  return lowering;
}

}  // namespace heddle::engine::cuda
