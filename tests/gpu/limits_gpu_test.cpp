// What small problems do not reach: elements that lie 2^32 apart, more than 2^30 rows, and values
// that no row may see but through a product with 0.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/rounding.h"
#include "engine/cuda/engine.h"
#include "gpu/device_memory.h"
#include "gpu/gpu_test.h"
#include "kernels/cases.h"
#include "kernels/streaming_cases.h"
#include "problem/operands.h"
#include "support/random.h"

namespace heddle::testing {
namespace {

using engine::cuda::backward_of;
using engine::cuda::Case;
using engine::cuda::Feature;
using engine::cuda::forward_of;
using problem::OperandId;
using problem::OperandLayout;
using problem::OperandType;
using Bytes = std::vector<unsigned char>;

bool is_real(DataType type) {
  return type == DataType::f32 || type == DataType::bf16 || type == DataType::f16;
}

/// Operands in one block of device memory: each in chunks, one for each index of a dim, which lie
/// `apart` elements from each other; between them lie those of the other operands.
class Spread {
 public:
  /// Lays out what is real and has as many indices of `dim` as the first operand; the rest stays as
  /// it is. With `apart` 0 chunks lie as close as they fit.
  Spread(const std::vector<OperandType>& types, std::vector<OperandLayout>& layouts, int dim,
         int64_t apart) {
    const int64_t count = layouts[0].dims[dim];
    int64_t at = 0, end = 0;
    for (size_t n = 0; n < types.size(); ++n) {
      OperandLayout& layout = layouts[n];
      for (int d = 0; d < layout.dims.rank(); ++d) {
        if (layout.dims[d] == 1) layout.strides[d] = 0;  // as problems have it
      }
      Place place{.at = at, .size = size_of(types[n].dtype)};
      place.chunk = *element_count(layout.dims) * place.size;
      if (is_real(types[n].dtype) && dim < layout.dims.rank() && layout.dims[dim] == count) {
        place.count = count;
        place.chunk /= count;
        layout.strides[dim] = apart > 0 ? apart : round_up(place.chunk, 256) / place.size;
        place.step = layout.strides[dim] * place.size;
        int64_t stride = 1;
        for (int d = layout.dims.rank() - 1; d >= 0; --d) {
          if (d == dim) continue;
          layout.strides[d] = layout.dims[d] == 1 ? 0 : stride;
          stride *= layout.dims[d];
        }
      }
      end = std::max(end, at + (place.count - 1) * place.step + place.chunk);
      at += apart > 0 ? round_up(place.chunk, 256)
                      : round_up((place.count - 1) * place.step + place.chunk, 256);
      places_.push_back(place);
    }
    block_ = std::make_unique<DeviceBlock>(std::max(at, end));
  }

  std::vector<void*> buffers() const {
    std::vector<void*> all;
    for (const Place& place : places_)
      all.push_back(static_cast<char*>(block_->pointer()) + place.at);
    return all;
  }
  Status put(size_t operand, const Bytes& values) const {
    const Place& place = places_[operand];
    for (int64_t i = 0; i < place.count; ++i)
      HEDDLE_TRY(block_->copy_from(values.data() + i * place.chunk, place.chunk,
                                   place.at + i * place.step));
    return {};
  }
  Result<Bytes> get(size_t operand) const {
    const Place& place = places_[operand];
    Bytes values(static_cast<size_t>(place.count * place.chunk));
    for (int64_t i = 0; i < place.count; ++i)
      HEDDLE_TRY(
          block_->copy_to(values.data() + i * place.chunk, place.chunk, place.at + i * place.step));
    return values;
  }

 private:
  struct Place {
    int64_t at = 0, size = 1, count = 1, chunk = 0, step = 0;  ///< in bytes, but for `count`
  };
  std::vector<Place> places_;
  std::unique_ptr<DeviceBlock> block_;
};

/// Numbers of -1 to 1; integers of 100 to 255, which are lengths, seeds and bits.
Bytes some_values(DataType type, int64_t count, Random& random) {
  Bytes values(static_cast<size_t>(count * size_of(type)));
  for (int64_t i = 0; i < count; ++i)
    store(type, values.data(), i,
          is_real(type) ? random.uniform(-1, 1) : static_cast<double>(random.integer(100, 255)));
  return values;
}

class FarApart : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(context_.status().is_ok()) << context_.status().message(); }

  /// What is written of the problem with its operands' indices of `dim` so far apart.
  Result<std::vector<Bytes>> execute(problem::Problem problem, const std::vector<Bytes>& values,
                                     const std::vector<OperandId>& written, int dim,
                                     int64_t apart) {
    const std::vector<OperandType>& types = problem::types_of(problem);
    const Spread memory(types, problem::layouts_of(problem), dim, apart);
    for (size_t n = 0; n < values.size(); ++n) HEDDLE_TRY(memory.put(n, values[n]));
    HEDDLE_ASSIGN(const auto plan, engine::cuda::cuda_engine().plan(problem));
    descriptions_.push_back(plan->description());
    const DeviceBlock workspace(plan->workspace_bytes());
    HEDDLE_TRY(plan->execute(memory.buffers(), workspace.pointer(), nullptr));
    HEDDLE_TRY(context_.synchronise());
    std::vector<Bytes> results;
    for (OperandId id : written) {
      HEDDLE_ASSIGN(Bytes result, memory.get(static_cast<size_t>(id)));
      results.push_back(std::move(result));
    }
    return results;
  }

  /// The same bits as of tensors that lie close; those are compared with the definition elsewhere.
  void expect_same_bits(const problem::Problem& problem, const std::vector<OperandId>& written,
                        int dim, int64_t apart) {
    Random random(0);
    std::vector<Bytes> values;
    const std::vector<OperandType>& types = problem::types_of(problem);
    problem::Problem copy = problem;
    for (size_t n = 0; n < types.size(); ++n)
      values.push_back(
          some_values(types[n].dtype, *element_count(problem::layouts_of(copy)[n].dims), random));
    const auto close = execute(problem, values, written, dim, 0);
    ASSERT_TRUE(close.is_ok()) << close.status().message();
    // What is not written is not the same.
    for (OperandId id : written)
      std::fill(values[static_cast<size_t>(id)].begin(), values[static_cast<size_t>(id)].end(),
                kPoison);
    const auto far = execute(problem, values, written, dim, apart);
    ASSERT_TRUE(far.is_ok()) << far.status().message();
    EXPECT_EQ(descriptions_[0], descriptions_[1]);
    descriptions_.clear();
    for (size_t n = 0; n < written.size(); ++n)
      EXPECT_TRUE((*close)[n] == (*far)[n]) << "operand " << written[n] << ", dim " << dim;
  }

  DeviceContext context_;
  std::vector<std::string> descriptions_;
};

/// Elements of which the last index of the dim, of so many, lies past 2^32.
int64_t past_32_bits(int64_t count) { return round_up((int64_t{1} << 32) / (count - 1) + 1, 128); }

std::vector<Case> far_cases() {
  std::vector<Case> cases{
      {.qk_dim = 128, .v_dim = 128, .features = {Feature::causal}},
      {.features = {Feature::bias}},
      {.qk_dim = 256, .v_dim = 256, .features = {Feature::soft_cap}},
      {.features = {Feature::philox, Feature::lengths}},
      {.features = {Feature::causal, Feature::block_mask}},
      {.features = {Feature::alibi, Feature::dropout_mask}},
      {.dtype = DataType::f32, .features = {Feature::causal}},
      {.dtype = DataType::f32, .qk_dim = 128, .v_dim = 128, .features = {Feature::wide_bias}},
      {.dtype = DataType::f32, .features = {Feature::block_mask}},
  };
  for (Case& c : cases) {
    c.length = 320;
    c.architecture = "far_apart";
    c.features.push_back(Feature::deterministic);
  }
  return cases;
}

class AttentionFarApart : public FarApart, public ::testing::WithParamInterface<Case> {
 protected:
  /// All at once: most of it is compilation.
  static void SetUpTestSuite() {
    std::vector<problem::Problem> problems;
    for (const Case& c : far_cases()) {
      problems.emplace_back(forward_of(c));
      problems.emplace_back(backward_of(c));
    }
    std::vector<const problem::Problem*> pointers;
    for (const problem::Problem& one : problems) pointers.push_back(&one);
    const Status prepared = engine::cuda::cuda_engine().prepare(pointers);
    ASSERT_TRUE(prepared.is_ok()) << prepared.message();
  }
};

TEST_P(AttentionFarApart, ForwardHasTheBitsOfTheSameCloser) {
  const problem::AttentionProblem problem = forward_of(GetParam());
  for (int dim = 0; dim < 3; ++dim) {
    expect_same_bits(problem, {problem.structure.o, problem.structure.stats}, dim,
                     past_32_bits(problem.sizes.layouts[0].dims[dim]));
  }
}

TEST_P(AttentionFarApart, BackwardHasTheBitsOfTheSameCloser) {
  const problem::AttentionBackwardProblem problem = backward_of(GetParam());
  std::vector<OperandId> written{problem.structure.d_q, problem.structure.d_k,
                                 problem.structure.d_v};
  for (const problem::LoadGradient& gradient : problem.structure.load_gradients)
    written.push_back(gradient.gradient);
  for (int dim = 0; dim < 3; ++dim)
    expect_same_bits(problem, written, dim, past_32_bits(problem.sizes.layouts[0].dims[dim]));
}

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionFarApart, ::testing::ValuesIn(far_cases()),
                         [](const auto& info) { return engine::cuda::title(info.param); });

TEST_F(FarApart, RopeHasTheBitsOfTheSameCloser) {
  for (const engine::cuda::RopeCase& c :
       {engine::cuda::RopeCase{}, {.y = DataType::f32, .interleaved = true, .tables = true}}) {
    const problem::RopeProblem problem = engine::cuda::rope_of(c);
    for (int dim = 0; dim < 3; ++dim)
      expect_same_bits(problem, {problem.structure.y}, dim,
                       past_32_bits(problem.sizes.layouts[0].dims[dim]));
  }
}

// In rings every length has its place. Entries lie further apart than strides of 32 bits say.
TEST_F(FarApart, CacheAppendHasTheBitsOfTheSameCloser) {
  const problem::CacheAppendProblem problem =
      engine::cuda::append_of({.norms = true, .storage = problem::Storage::Kind::ring});
  const problem::CacheAppendStructure& s = problem.structure;
  for (int dim = 0; dim < 3; ++dim)
    expect_same_bits(problem, {s.q_out, s.k_cache, s.v_cache}, dim,
                     past_32_bits(problem.sizes.layout(s.q).dims[dim]));
}

TEST_F(FarApart, NormsHaveTheBitsOfTheSameCloser) {
  for (const bool centred : {false, true}) {
    for (int64_t columns : {4096, 40000}) {
      const problem::NormProblem forward =
          engine::cuda::norm_of({.columns = columns, .centred = centred});
      std::vector<OperandId> results{forward.structure.y, forward.structure.inv_rms};
      if (centred) results.push_back(forward.structure.mean);
      expect_same_bits(forward, results, 0, past_32_bits(64));
      const problem::NormBackwardProblem backward =
          engine::cuda::norm_backward_of({.columns = columns, .bias = true, .centred = centred});
      expect_same_bits(
          backward, {backward.structure.dx, backward.structure.d_weight, backward.structure.d_bias},
          0, past_32_bits(64));
    }
  }
}

class Rows : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(context_.status().is_ok()) << context_.status().message(); }

  /// A block of memory for each operand, poisoned.
  struct Memory {
    explicit Memory(const std::vector<OperandType>& types,
                    const std::vector<OperandLayout>& layouts) {
      for (size_t n = 0; n < types.size(); ++n) {
        blocks.push_back(std::make_unique<DeviceBlock>(*element_count(layouts[n].dims) *
                                                       size_of(types[n].dtype)));
        buffers.push_back(blocks.back()->pointer());
      }
    }
    const DeviceBlock& operator[](OperandId id) const { return *blocks[static_cast<size_t>(id)]; }
    std::vector<std::unique_ptr<DeviceBlock>> blocks;
    std::vector<void*> buffers;
  };
  void execute(const problem::Problem& problem, const Memory& memory) {
    const auto plan = engine::cuda::cuda_engine().plan(problem);
    ASSERT_TRUE(plan.is_ok()) << plan.status().message();
    const DeviceBlock workspace((*plan)->workspace_bytes());
    const Status queued = (*plan)->execute(memory.buffers, workspace.pointer(), nullptr);
    ASSERT_TRUE(queued.is_ok()) << queued.message();
    const Status finished = context_.synchronise();
    ASSERT_TRUE(finished.is_ok()) << finished.message();
  }
  static std::vector<float> get(const DeviceBlock& block, DataType type, int64_t first,
                                int64_t count) {
    Bytes bytes(static_cast<size_t>(count * size_of(type)));
    const auto size = static_cast<int64_t>(bytes.size());
    EXPECT_TRUE(block.copy_to(bytes.data(), size, first * size_of(type)).is_ok());
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>(load(type, bytes.data(), i)));
    return values;
  }

  DeviceContext context_;
};

/// One head of so many queries, aligned to the end of 512 keys.
problem::AttentionProblem causal_rows(int64_t q_length) {
  problem::AttentionProblem problem =
      forward_of({.qk_dim = 8, .v_dim = 8, .features = {Feature::causal}});
  const problem::AttentionStructure& s = problem.structure;
  problem::AttentionSizes& sizes = problem.sizes;
  for (size_t n = 0; n < sizes.layouts.size(); ++n) {
    OperandLayout& layout = sizes.layouts[n];
    const bool of_keys = n == static_cast<size_t>(s.k) || n == static_cast<size_t>(s.v);
    const int64_t columns = layout.dims[3];
    layout = {.dims = {1, 1, of_keys ? sizes.kv_length : q_length, columns},
              .strides = {0, 0, columns, columns > 1 ? 1 : 0}};
  }
  sizes.batch = sizes.q_heads = sizes.k_heads = sizes.v_heads = 1;
  sizes.q_length = q_length;
  return problem;
}

// The last 512 rows see keys, as they do alone; those before them hold NaN and see nothing.
TEST_F(Rows, BeyondTwoToThe30SeeTheirKeys) {
  constexpr int64_t kSeeing = 512, kMany = (int64_t{1} << 30) + (int64_t{1} << 20);
  Random random(0);
  const Bytes q = some_values(DataType::bf16, kSeeing * 8, random),
              k = some_values(DataType::bf16, kSeeing * 8, random),
              v = some_values(DataType::bf16, kSeeing * 8, random);
  std::vector<float> of_few;
  for (int64_t rows : {kSeeing, kMany}) {
    const problem::AttentionProblem problem = causal_rows(rows);
    const problem::AttentionStructure& s = problem.structure;
    const Memory memory(s.operands, problem.sizes.layouts);
    const auto bytes = static_cast<int64_t>(q.size());
    ASSERT_TRUE(memory[s.q].copy_from(q.data(), bytes, rows * 16 - bytes).is_ok());
    ASSERT_TRUE(memory[s.k].copy_from(k.data(), bytes).is_ok());
    ASSERT_TRUE(memory[s.v].copy_from(v.data(), bytes).is_ok());
    execute(problem, memory);
    const std::vector<float> seeing =
        get(memory[s.o], DataType::bf16, (rows - kSeeing) * 8, kSeeing * 8);
    if (rows == kSeeing) of_few = seeing;
    for (size_t n = 0; n < seeing.size(); ++n) ASSERT_NEAR(seeing[n], of_few[n], 0.02) << n;
    if (rows == kSeeing) continue;
    for (int64_t first : {int64_t{0}, int64_t{1} << 30, rows - 2 * kSeeing}) {
      for (float x : get(memory[s.o], DataType::bf16, first * 8, kSeeing * 8))
        ASSERT_EQ(x, 0) << "of 512 rows from " << first;
      for (float x : get(memory[s.stats], DataType::f32, first, kSeeing))
        ASSERT_EQ(x, -INFINITY) << "of 512 rows from " << first;
    }
  }
}

/// What rows that see nothing and rows past a length give where values are infinite or NaN.
class HiddenRows : public Rows, public ::testing::WithParamInterface<Case> {};

TEST_P(HiddenRows, GiveZerosWhateverTheValues) {
  constexpr int64_t kKeys = 192, kLength = 200;
  problem::AttentionProblem problem = forward_of(GetParam());
  const problem::AttentionStructure& s = problem.structure;
  problem::AttentionSizes& sizes = problem.sizes;
  const bool padded = s.q_lengths != problem::kAbsent;
  if (!padded) {
    sizes.kv_length = kKeys;
    for (OperandId id : {s.k, s.v}) {
      OperandLayout& layout = sizes.layouts[static_cast<size_t>(id)];
      layout.dims[2] = kKeys;
      layout.strides = *dense_strides(layout.dims);
    }
  }
  const Memory memory(s.operands, sizes.layouts);
  Random random(0);
  for (size_t n = 0; n < s.operands.size(); ++n) {
    const Dims& dims = sizes.layouts[n].dims;
    const DataType type = s.operands[n].dtype;
    Bytes values = some_values(type, *element_count(dims), random);
    for (int64_t i = 0; i < *element_count(dims); ++i) {
      const int64_t row = i / dims[3] % dims[2];
      if (!is_real(type)) store(type, values.data(), i, kLength);
      if (n == static_cast<size_t>(s.v) && row % 64 == 5)
        store(type, values.data(), i, row % 128 == 5 ? INFINITY : NAN);
    }
    ASSERT_TRUE(
        memory.blocks[n]->copy_from(values.data(), static_cast<int64_t>(values.size())).is_ok());
  }
  execute(problem, memory);
  const Dims& dims = sizes.layout(s.o).dims;
  const std::vector<float> o = get(memory[s.o], GetParam().dtype, 0, *element_count(dims));
  const int64_t hidden_from = padded ? kLength : 0,
                hidden_to = padded ? dims[2] : dims[2] - sizes.kv_length;
  ASSERT_LT(hidden_from, hidden_to);
  for (int64_t i = 0; i < *element_count(dims); ++i) {
    const int64_t row = i / dims[3] % dims[2];
    if (row < hidden_from || row >= hidden_to) continue;
    ASSERT_EQ(o[static_cast<size_t>(i)], 0) << "row " << row << ", column " << i % dims[3];
  }
}

std::vector<Case> hidden_cases() {
  std::vector<Case> cases;
  for (DataType dtype : {DataType::bf16, DataType::f16, DataType::f32}) {
    for (int dim : {64, 128, 256}) {
      for (const auto& features : {std::vector{Feature::causal}, {Feature::lengths}}) {
        cases.push_back({.dtype = dtype,
                         .qk_dim = dim,
                         .v_dim = dim,
                         .features = features,
                         .architecture = "hidden",
                         .length = 320});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Gpu, HiddenRows, ::testing::ValuesIn(hidden_cases()),
                         [](const auto& info) { return engine::cuda::title(info.param); });

}  // namespace
}  // namespace heddle::testing
