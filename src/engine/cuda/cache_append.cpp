#include "engine/cuda/cache_append.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/rounding.h"
#include "engine/cuda/config_source.h"
#include "problem/facts.h"
#include "problem/operands.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {

using problem::CacheAppendProblem;
using problem::CacheAppendSizes;
using problem::CacheAppendStructure;
using problem::kAbsent;
using problem::OperandId;
using problem::OperandType;

namespace {

constexpr const char* kKernelName = "cache_append";
constexpr int kThreads = 256, kWarps = kThreads / 32;
/// Counted in 31 bits, with the last block's.
constexpr int64_t kMostRows = INT32_MAX - kThreads;
/// Of a row: 32 of each thread of a warp.
constexpr int kMostColumns = 1024;
/// Blocks that carry rows over, of a processor: it has room for as many.
constexpr int64_t kCarryingBlocks = 8;

Status check_number(const CacheAppendStructure& s, const char* label, OperandId id) {
  if (id == kAbsent) return {};
  const OperandType& type = s.type(id);
  if (type.on_host)
    return error(Code::graph_not_supported,
                 "cuda: cache_append {} is passed by value, expected a tensor in device memory",
                 label);
  if (type.holds_codes() || type.dtype == DataType::f32 || type.dtype == DataType::bf16 ||
      type.dtype == DataType::f16)
    return {};
  return error(Code::graph_not_supported,
               "cuda: cache_append {} is {}, but the kernel takes f32, bf16, f16", label,
               name(type.dtype));
}

/// The columns of a tensor are neighbours, and it has all its rows by strides or on pages.
Status check_rows(const CacheAppendProblem& problem, const char* label, OperandId id) {
  if (id == kAbsent) return {};
  const problem::OperandLayout& layout = problem.sizes.layout(id);
  if ((layout.dims[3] == 1 || layout.strides[3] == 1) &&
      !problem.structure.type(id).storage.is_ragged())
    return {};
  return error(
      Code::graph_not_supported,
      "cuda: cache_append {} is ragged or has strides {}, expected neither ragged rows nor "
      "a last stride other than 1",
      label, to_string(layout.strides));
}

/// Whether a cache holds two columns in an element.
bool holds_pairs(const CacheAppendStructure& s) {
  return s.has_caches() &&
         (s.type(s.k_cache).dtype == DataType::u8 || s.type(s.v_cache).dtype == DataType::u8);
}

/// Rows of a token: of Q, if it is wanted, K and V.
int64_t heads_of(const CacheAppendProblem& problem) {
  return (problem.structure.q_out == kAbsent ? 0 : problem.sizes.q_heads) +
         (problem.structure.has_caches() ? 2 * problem.sizes.kv_heads : 0);
}

Status check(const CacheAppendProblem& problem) {
  const CacheAppendStructure& s = problem.structure;
  const CacheAppendSizes& z = problem.sizes;
  Status status;
  problem::operands(
      [&](const char* label, OperandId id, problem::Use) {
        if (status.is_ok() && id != kAbsent && s.type(id).on_host)
          status = check_number(s, label, id);
      },
      s);
  problem::tensors(
      [&](const char* label, OperandId id, problem::Use) {
        if (status.is_ok()) status = check_number(s, label, id);
        if (status.is_ok()) status = check_rows(problem, label, id);
      },
      s);
  HEDDLE_TRY(status);
  for (const auto& [label, id] : {std::pair{"the norm weight of q", s.q_norm},
                                  {"the norm weight of k", s.k_norm},
                                  {"cosines", s.cosines},
                                  {"sines", s.sines}})
    HEDDLE_TRY(check_number(s, label, id));
  for (const int32_t columns : {s.qk_head_dim, s.v_head_dim}) {
    if (columns > kMostColumns)
      return error(Code::graph_not_supported,
                   "cuda: cache_append has heads of {} columns, but the kernel takes up to {}",
                   columns, kMostColumns);
  }
  if (holds_pairs(s) && (s.qk_head_dim % 2 != 0 || s.v_head_dim % 2 != 0))
    return error(
        Code::graph_not_supported,
        "cuda: cache_append keeps codes of 4 bits, of heads of {} and {} columns, expected "
        "even numbers of them",
        s.qk_head_dim, s.v_head_dim);
  if (s.cosines != kAbsent && z.layout(s.cosines).dims[0] > INT32_MAX)
    return error(Code::graph_not_supported,
                 "cuda: cache_append rotates by tables of {} rows; they may have {}",
                 z.layout(s.cosines).dims[0], INT32_MAX);
  const int64_t heads = heads_of(problem);
  if (z.batch * z.length <= kMostRows / std::max<int64_t>(heads, 1)) return {};
  return error(Code::graph_not_supported,
               "cuda: cache_append has {} x {} new rows of {} heads; a launch takes {} rows of "
               "heads",
               z.batch, z.length, heads, kMostRows);
}

template <bool kWide>
class CacheAppendLaunches final : public Launches {
  using Arguments = streaming::CacheAppendArguments<kWide>;
  using Stride = typename Arguments::Stride;

 public:
  CacheAppendLaunches(const CacheAppendProblem& problem, const streaming::CacheAppendConfig& config,
                      const Target& target)
      : problem_(problem), run_(config.run), table_run_(config.table_run) {
    const int64_t rows = z().batch * z().length * heads_of(problem);
    const int64_t lanes =
        streaming::append_lanes(std::max(config.qk_dim, config.v_dim), config.run);
    arguments_.append_blocks = static_cast<int>(divide_up(rows, kThreads / lanes));
    arguments_.heads = static_cast<int>(heads_of(problem));
    arguments_.by_heads = Divisor<true>::of(arguments_.heads);
    arguments_.by_length = Divisor<true>::of(static_cast<int>(z().length));
    if (s().has_caches() && !config.paged) {
      const int64_t rows = std::max(rows_of(s().k_cache), rows_of(s().v_cache));
      carrying_blocks_ = std::min(divide_up(z().batch * z().kv_heads * rows, int64_t{kWarps}),
                                  kCarryingBlocks * target.processors);
    }
    set_sizes();
  }

  Status execute(const Execution& at) const override {
    if (z().batch == 0) return {};
    HEDDLE_TRY(check_addresses(at.buffers));
    Arguments a = arguments_;
    bind(at.buffers, a);
    HEDDLE_TRY(bind_cache("k", s().past_k, s().k_cache, at.buffers, a.to[kK], a.cache[0]));
    HEDDLE_TRY(bind_cache("v", s().past_v, s().v_cache, at.buffers, a.to[kV], a.cache[1]));
    const bool carries = a.cache[0].carried != 0 || a.cache[1].carried != 0;
    const Launch launch{
        .grid_x = static_cast<unsigned>(a.append_blocks + 1 + (carries ? carrying_blocks_ : 0)),
        .threads = kThreads};
    return at.launch(0, launch, &a);
  }

 private:
  static constexpr int kQ = 0, kK = 1, kV = 2;
  const CacheAppendStructure& s() const { return problem_.structure; }
  const CacheAppendSizes& z() const { return problem_.sizes; }
  int64_t rows_of(OperandId id) const { return z().layout(id).dims[2]; }
  /// Of a dim of one element 0, whatever it is given as.
  int64_t stride(OperandId id, int d) const {
    const problem::OperandLayout& layout = z().layout(id);
    return layout.dims[d] == 1 ? 0 : layout.strides[d];
  }
  bool is_64_bit(OperandId id) const { return s().type(id).dtype == DataType::i64; }
  template <typename To, size_t kCount>
  void set_strides(OperandId id, To (&to)[kCount], std::initializer_list<int> dims) const {
    size_t n = 0;
    for (const int d : dims) to[n++] = id == kAbsent ? 0 : static_cast<To>(stride(id, d));
  }

  void set_sizes() {
    Arguments& a = arguments_;
    a.batch = static_cast<int>(z().batch);
    a.q_heads = s().q_out == kAbsent ? 0 : static_cast<int>(z().q_heads);
    a.kv_heads = static_cast<int>(z().kv_heads);
    a.length = static_cast<int>(z().length);
    a.capacity = static_cast<int>(z().capacity);
    a.total_offset = static_cast<int>(z().total_offset);
    const OperandId k = s().is_packed() ? s().q : s().k, v = s().is_packed() ? s().q : s().v;
    set_strides(s().q, a.from[kQ].stride, {0, 1, 2});
    set_strides(k, a.from[kK].stride, {0, 1, 2});
    set_strides(v, a.from[kV].stride, {0, 1, 2});
    set_strides(s().q_out, a.to[kQ].stride, {0, 1, 2});
    a.to[kQ].rows = a.length;
    set_norm(s().q_norm, z().q_epsilon, a.norm[kQ]);
    set_norm(s().k_norm, z().k_epsilon, a.norm[kK]);
    set_strides(s().cosines, a.cosine_stride, {0, 3});
    set_strides(s().sines, a.sine_stride, {0, 3});
    if (s().cosines != kAbsent) a.table_rows = static_cast<int>(z().layout(s().cosines).dims[0]);
    set_strides(s().positions, a.position_stride, {0, 2});
    for (const auto& [id, numbers] : {std::pair{s().new_lengths, &a.new_lengths},
                                      {s().total_lengths, &a.total_lengths},
                                      {s().lengths_q, &a.lengths_q},
                                      {s().lengths_kv, &a.lengths_kv}}) {
      if (id == kAbsent) continue;
      numbers->stride = static_cast<Stride>(stride(id, 0));
      numbers->are_64_bit = is_64_bit(id);
    }
    set_cache(s().past_k, s().k_cache, a.to[kK], a.cache[0]);
    set_cache(s().past_v, s().v_cache, a.to[kV], a.cache[1]);
  }

  void set_norm(OperandId weight, double epsilon, streaming::NormWeight& a) const {
    if (weight != kAbsent) a.stride = stride(weight, 3);
    a.epsilon = epsilon;
  }

  void set_cache(OperandId past, OperandId cache, streaming::AppendedRows<Stride>& to,
                 streaming::CacheArguments<Stride>& a) const {
    if (cache == kAbsent) return;
    const OperandType& type = s().type(cache);
    set_strides(cache, to.stride, {0, 1, 2});
    to.rows = static_cast<int>(rows_of(cache));
    set_strides(past, a.past_stride, {0, 1, 2});
    a.past_rows = past == kAbsent ? 0 : static_cast<int>(rows_of(past));
    if (const OperandId table = type.storage.page_table(); table != kAbsent) {
      a.blocks = static_cast<int>(z().layout(cache).dims[0]);
      a.pages = static_cast<int>(rows_of(table));
      set_strides(table, a.table_stride, {0, 2});
      a.table_is_64_bit = is_64_bit(table);
    }
    if (type.holds_codes()) set_strides(type.scales.operand, a.scale_stride, {1, 3});
  }

  /// The least multiple that the address of an operand is to be of, `together` elements of which
  /// an access takes.
  uintptr_t unit_of(OperandId id, int64_t together) const {
    return static_cast<uintptr_t>(std::min<int64_t>(size_of(s().type(id).dtype) * together, 16));
  }

  Status check_addresses(std::span<void* const> buffers) const {
    Status status;
    const auto check = [&](const char* label, OperandId id, int64_t together) {
      if (!status.is_ok() || id == kAbsent) return;
      const auto address = reinterpret_cast<uintptr_t>(buffers[static_cast<size_t>(id)]);
      const uintptr_t unit = unit_of(id, together);
      const auto count = element_count(z().layout(id).dims);
      if ((address != 0 || count == 0) && address % unit == 0) return;
      status = error(Code::invalid_variant_pack,
                     "cuda: cache_append {} is at address {:#x}, expected a multiple of {} for the "
                     "kernel planned for it",
                     label, address, unit);
    };
    problem::operands([&](const char* label, OperandId id, problem::Use) { check(label, id, 1); },
                      s());
    problem::tensors([&](const char* label, OperandId id, problem::Use) { check(label, id, run_); },
                     s());
    check("cosines", s().cosines, table_run_);
    check("sines", s().sines, table_run_);
    return status;
  }

  void bind(std::span<void* const> buffers, Arguments& a) const {
    const auto buffer = [&](OperandId id) -> void* {
      return id == kAbsent ? nullptr : buffers[static_cast<size_t>(id)];
    };
    a.from[kQ].data = buffer(s().q);
    a.from[kK].data = buffer(s().k);
    a.from[kV].data = buffer(s().v);
    if (s().is_packed()) {
      const int64_t head = stride(s().q, 1) * size_of(s().type(s().q).dtype);
      a.from[kK].data = static_cast<const char*>(a.from[kQ].data) + z().q_heads * head;
      a.from[kV].data = static_cast<const char*>(a.from[kK].data) + z().kv_heads * head;
    }
    a.to[kQ].data = buffer(s().q_out);
    a.norm[kQ].data = buffer(s().q_norm);
    a.norm[kK].data = buffer(s().k_norm);
    a.cosines = buffer(s().cosines);
    a.sines = buffer(s().sines);
    a.positions = buffer(s().positions);
    a.new_lengths.data = buffer(s().new_lengths);
    a.total_lengths.data = buffer(s().total_lengths);
    a.lengths_q.data = buffer(s().lengths_q);
    a.lengths_kv.data = buffer(s().lengths_kv);
  }

  Status bind_cache(const char* label, OperandId past, OperandId cache,
                    std::span<void* const> buffers, streaming::AppendedRows<Stride>& to,
                    streaming::CacheArguments<Stride>& a) const {
    if (cache == kAbsent) return {};
    const auto buffer = [&](OperandId id) -> void* {
      return id == kAbsent ? nullptr : buffers[static_cast<size_t>(id)];
    };
    const OperandType& type = s().type(cache);
    to.data = buffer(cache);
    a.past = buffer(past);
    a.table = buffer(type.storage.page_table());
    a.scales = static_cast<const float*>(buffer(type.scales.operand));
    a.carried = a.past == nullptr || a.past != to.data;
    if (!a.carried || !type.storage.is_paged()) return {};
    return error(Code::invalid_variant_pack,
                 "cuda: cache_append: the pages of {} and those of its past are two buffers, "
                 "expected one",
                 label);
  }

  const CacheAppendProblem problem_;
  const int64_t run_, table_run_;
  int64_t carrying_blocks_ = 0;
  Arguments arguments_{};
};

/// One block of a processor at least: else sm_80 is held to 32 registers, and spills in some.
KernelUnit unit_of(const streaming::CacheAppendConfig& config) {
  return {
      kKernelName,
      fmt::format("#include \"streaming/cache_append.cuh\"\n"
                  "namespace heddle::streaming {{\n{}}}  // namespace heddle::streaming\n"
                  "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
                  "{}(const __grid_constant__ heddle::streaming::CacheAppendArguments<{}> "
                  "arguments) {{\n"
                  "  heddle::streaming::CacheAppend<heddle::streaming::Config>::run(arguments);\n"
                  "}}\n",
                  config_source<streaming::CacheAppendConfig>(config), kThreads, kKernelName,
                  config.wide),
      summary_of<streaming::CacheAppendConfig>(config)};
}

}  // namespace

Result<streaming::CacheAppendConfig> configure_cache_append(const CacheAppendProblem& problem) {
  HEDDLE_TRY(check(problem));
  const CacheAppendStructure& s = problem.structure;
  streaming::CacheAppendConfig config;
  const auto element = [&](OperandId id, Element otherwise) {
    return id == kAbsent ? otherwise : element_of(s.type(id).dtype);
  };
  config.q = element(s.q, Element::bf16);
  config.k = element(s.k, config.q);
  config.v = element(s.v, config.q);
  config.q_out = element(s.q_out, config.q);
  config.k_cache = element(s.k_cache, config.q);
  config.v_cache = element(s.v_cache, config.q);
  config.q_weight = element(s.q_norm, config.q);
  config.k_weight = element(s.k_norm, config.q);
  config.cosine = element(s.cosines, Element::f32);
  config.sine = element(s.sines, Element::f32);
  config.qk_dim = s.qk_head_dim;
  config.v_dim = s.v_head_dim;
  config.rope_dim = s.cosines == kAbsent ? 0 : s.rope_dim;
  config.interleaved = s.pairing == problem::Rope::Pairing::interleaved;
  config.caches = s.has_caches();
  config.q_norm = s.q_norm != kAbsent;
  config.k_norm = s.k_norm != kAbsent;
  const auto bits = [&](OperandId id) {
    return id == kAbsent ? 0 : s.type(id).dtype == DataType::i64 ? 64 : 32;
  };
  config.new_length_bits = bits(s.new_lengths);
  config.total_length_bits = bits(s.total_lengths);
  config.position_bits = bits(s.positions);
  config.paged = s.has_caches() && s.type(s.k_cache).storage.is_paged();
  config.ring = s.has_caches() && s.type(s.k_cache).storage.is_ring();
  const problem::CacheAppendFacts facts = problem::facts_of(problem);
  // Runs hold whole elements of rows, also of those that hold two columns, and of halves.
  config.run = std::gcd(facts.alignment, 4);
  if (config.rope_dim > 0) config.run = std::gcd(config.run, config.rope_dim / 2);
  config.table_run = std::gcd(facts.table_alignment, config.run);
  config.wide = facts.has_wide_strides;
  return config;
}

Result<Lowering> lower_cache_append(const CacheAppendProblem& problem, const Target& target) {
  HEDDLE_ASSIGN(const streaming::CacheAppendConfig config, configure_cache_append(problem));
  Lowering lowering;
  lowering.add_kernel(unit_of(config), kThreads);
  lowering.description =
      fmt::format("cache append, runs of {}, {}", config.run, target.architecture);
  if (config.wide)
    lowering.launches = std::make_shared<const CacheAppendLaunches<true>>(problem, config, target);
  else
    lowering.launches = std::make_shared<const CacheAppendLaunches<false>>(problem, config, target);
  return lowering;
}

}  // namespace heddle::engine::cuda
