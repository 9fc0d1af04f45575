// Scores of any size, forward and backward in one program with the rows' maxima and sums between
// them: rows hidden whole by huge finite numbers, rows lifted by them, logits of a thousand. Held
// against the same steps spelled out: in f64 or, where a huge number leaves of f32 scores nothing
// but itself, in f32, which is what such a program means.
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "gpu/attention_options.h"
#include "gpu/attention_program.h"
#include "gpu/gpu_test.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

using graph::TensorId;

struct Shape {
  DataType dtype;
  int64_t length, head_dim;
  bool general = false;  ///< rows of Q lie off 16 bytes, which the general kernels alone take
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    return out << name(s.dtype) << ", " << s.length << " rows, head_dim " << s.head_dim
               << (s.general ? ", general kernels" : "");
  }
};

constexpr int64_t kHeads = 2;

using Numbers = std::vector<double>;
struct Inputs {
  Numbers q, k, v, d_o, bias;  ///< [head, row, column]; the bias of all heads
};
struct Results {
  Numbers o, d_q, d_k, d_v, d_bias;
};

/// Attention and its gradients with every number rounded to Number.
template <class Number>
Results spelled_out(const Inputs& x, const Shape& shape, Number scale) {
  const auto s = static_cast<size_t>(shape.length), d = static_cast<size_t>(shape.head_dim);
  const auto dot = [d](const Numbers& a, size_t i, const Numbers& b, size_t j) {
    Number sum = 0;
    for (size_t n = 0; n < d; ++n)
      sum += static_cast<Number>(a[i * d + n]) * static_cast<Number>(b[j * d + n]);
    return sum;
  };
  std::vector<Number> o(kHeads * s * d), d_q(o), d_k(o), d_v(o), d_bias(s * s);
  for (size_t row = 0; row < kHeads * s; ++row) {
    const size_t first_key = row / s * s, i = row % s;
    std::vector<Number> p(s);
    Number most = -std::numeric_limits<Number>::infinity(), sum = 0, delta = 0;
    for (size_t j = 0; j < s; ++j) {
      p[j] = scale * dot(x.q, row, x.k, first_key + j);
      if (!x.bias.empty()) p[j] += static_cast<Number>(x.bias[i * s + j]);
      most = std::max(most, p[j]);
    }
    for (Number& one : p) sum += one = std::exp(one - most);
    for (size_t j = 0; j < s; ++j) {
      p[j] /= sum;
      for (size_t n = 0; n < d; ++n) {
        o[row * d + n] += p[j] * static_cast<Number>(x.v[(first_key + j) * d + n]);
        d_v[(first_key + j) * d + n] += p[j] * static_cast<Number>(x.d_o[row * d + n]);
      }
    }
    for (size_t n = 0; n < d; ++n)
      delta += o[row * d + n] * static_cast<Number>(x.d_o[row * d + n]);
    for (size_t j = 0; j < s; ++j) {
      const Number d_s = p[j] * (dot(x.d_o, row, x.v, first_key + j) - delta);
      d_bias[i * s + j] += d_s;
      for (size_t n = 0; n < d; ++n) {
        d_q[row * d + n] += scale * d_s * static_cast<Number>(x.k[(first_key + j) * d + n]);
        d_k[(first_key + j) * d + n] += scale * d_s * static_cast<Number>(x.q[row * d + n]);
      }
    }
  }
  const auto wide = [](const std::vector<Number>& of) { return Numbers(of.begin(), of.end()); };
  return {wide(o), wide(d_q), wide(d_k), wide(d_v), wide(d_bias)};
}

double root_mean_square(const Numbers& of) {
  double squares = 0;
  for (double x : of) squares += x * x;
  return std::sqrt(squares / static_cast<double>(of.size()));
}
double error(const Numbers& got, const Numbers& want) {
  Numbers apart(want.size());
  for (size_t n = 0; n < want.size(); ++n) apart[n] = got[n] - want[n];
  return root_mean_square(apart);
}

class LargeScoresOnGpu : public OnGpu {
 protected:
  static constexpr Tolerance kTwiceNaive{.factor = 2, .floor_steps = 4, .cancellation_steps = 0};

  struct Run {
    Inputs inputs;
    Results results;
    float scale = 1;
  };
  /// Q is normal times `size`; a bias, if there is one, of each cell.
  Run run_of(const Shape& shape, double size,
             const std::function<double(int64_t row, int64_t key)>& bias = nullptr) {
    Program program;
    graph::Graph& graph = program.graph;
    graph.io_dtype = shape.dtype;
    graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
    const Dims dims{1, kHeads, shape.length, shape.head_dim}, row{1, kHeads, shape.length, 1},
        cells{1, 1, shape.length, shape.length};
    const auto add = [&](const char* name, DataType dtype, const Dims& of, Dims strides = {}) {
      const TensorId id = program.add(name, dtype, of, strides);
      program.allocate(id);
      return id;
    };
    const int64_t odd = shape.head_dim + 1;
    const Dims odd_strides{kHeads * shape.length * odd, shape.length * odd, odd, 1};
    Random random(static_cast<uint64_t>(shape.length));
    const auto input = [&](const char* name, double factor, Dims strides = {}) {
      const TensorId id = add(name, shape.dtype, dims, strides);
      program.fill(id, [&] { return factor * random.normal(); });
      return id;
    };
    graph::Sdpa op;
    op.attention.attn_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    op.q = input("q", size, shape.general ? odd_strides : Dims{});
    op.k = input("k", 1);
    op.v = input("v", 1);
    if (bias) {
      op.attention.bias = add("bias", shape.dtype, cells);
      for (int64_t i = 0; i < shape.length; ++i)
        for (int64_t j = 0; j < shape.length; ++j)
          program.set(op.attention.bias, bias(i, j), 0, 0, i, j);
    }
    op.o = add("o", shape.dtype, dims);
    op.max = add("max", DataType::f32, row);
    op.sum_exp = add("sum_exp", DataType::f32, row);
    graph::SdpaBackward gradient;
    gradient.q = op.q, gradient.k = op.k, gradient.v = op.v, gradient.o = op.o;
    gradient.max = op.max, gradient.sum_exp = op.sum_exp;
    gradient.attention = op.attention;
    gradient.d_o = input("dO", 1);
    gradient.d_q = add("dQ", shape.dtype, dims);
    gradient.d_k = add("dK", shape.dtype, dims);
    gradient.d_v = add("dV", shape.dtype, dims);
    if (bias) gradient.d_bias = add("dBias", shape.dtype, cells);
    graph.nodes = {{"attention", op}, {"gradient", gradient}};

    Run run;
    run.scale = static_cast<float>(*op.attention.attn_scale);
    Built built = build(std::move(program));
    EXPECT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    if (!built.executable.is_ok()) return run;
    execute(built);
    const auto numbers = [&](TensorId id) {
      Numbers all;
      if (id == graph::kNone) return all;
      const graph::Tensor& tensor = built.program.graph[id];
      const void* const from = built.program.memory.at(tensor.uid).data();
      const Dims &of = tensor.dims, &step = tensor.strides;
      for (int64_t h = 0; h < of[1]; ++h)
        for (int64_t i = 0; i < of[2]; ++i)
          for (int64_t j = 0; j < of[3]; ++j)
            all.push_back(load(*tensor.dtype, from, h * step[1] + i * step[2] + j * step[3]));
      return all;
    };
    run.inputs = {numbers(op.q), numbers(op.k), numbers(op.v), numbers(gradient.d_o),
                  numbers(op.attention.bias)};
    run.results = {numbers(op.o), numbers(gradient.d_q), numbers(gradient.d_k),
                   numbers(gradient.d_v), numbers(gradient.d_bias)};
    return run;
  }
};

constexpr std::pair<const char*, Numbers Results::*> kResults[] = {{"O", &Results::o},
                                                                   {"dQ", &Results::d_q},
                                                                   {"dK", &Results::d_k},
                                                                   {"dV", &Results::d_v},
                                                                   {"dBias", &Results::d_bias}};

TEST_F(LargeScoresOnGpu, RowsHiddenOrLiftedWholeWeighTheirKeysAlike) {
  const auto bias = [](int64_t row, int64_t key) {
    constexpr double kBeside[] = {0, -1e9, -3.3e38, 4e9};
    return kBeside[row % 4] + (row % 4 == 0 && key % 3 > 0 ? -1e9 : 0);
  };
  std::vector<Shape> shapes;
  for (DataType dtype : {DataType::bf16, DataType::f32})
    for (int64_t head_dim : {64, 128, 256})
      for (bool general : {false, true}) shapes.push_back({dtype, 144, head_dim, general});
  at_once(static_cast<int64_t>(shapes.size()), [&](int64_t n) {
    const Shape& shape = shapes[static_cast<size_t>(n)];
    const Run run = run_of(shape, 1, bias);
    if (run.results.o.empty()) return;  // said
    const Results want = spelled_out<float>(run.inputs, shape, run.scale);
    const double allowed = shape.dtype == DataType::f32 ? 1e-5 : 0x1p-6;
    for (const auto& [name, of] : kResults) {
      const double magnitude = root_mean_square(want.*of);
      EXPECT_GT(magnitude, 0);
      EXPECT_LE(error(run.results.*of, want.*of), allowed * magnitude) << name << " of " << shape;
    }
  });
}

// Rows whose weight is all at one key, but for some: what a score or a log-sum-exp of a thousand is
// rounded by would be a share of each weight.
TEST_F(LargeScoresOnGpu, LogitsOfAThousandErrAsTheNaiveComputationDoes) {
  std::vector<Shape> shapes;
  for (int64_t head_dim : {32, 64, 96, 128})
    for (bool general : {false, true}) shapes.push_back({DataType::f32, 200, head_dim, general});
  at_once(static_cast<int64_t>(shapes.size()), [&](int64_t n) {
    const Shape& shape = shapes[static_cast<size_t>(n)];
    const Run run = run_of(shape, 300);
    if (run.results.o.empty()) return;  // said
    const Results want = spelled_out<double>(run.inputs, shape, run.scale),
                  naive = spelled_out<float>(run.inputs, shape, run.scale);
    for (const auto& [name, of] : kResults) {
      if (of == &Results::d_bias) continue;  // there is no bias
      const double magnitude = root_mean_square(want.*of);
      const double mine = error(run.results.*of, want.*of), theirs = error(naive.*of, want.*of);
      EXPECT_LE(mine, 2 * theirs + 0x1p-24 * magnitude)
          << name << " of " << shape << ", naive " << theirs << ", magnitude " << magnitude;
    }
  });
}

// The largest score of a row has all its weight.
TEST_F(LargeScoresOnGpu, DotsOfAnySizeAreWeighed) {
  struct Case {
    Shape shape;
    double size;
  };
  std::vector<Case> cases;
  for (DataType dtype : {DataType::bf16, DataType::f32})
    for (int64_t head_dim : {64, 128, 192})
      for (double size : {1e6, 1e7, 1e9, 1e12, 1e20, 1e30})
        for (bool general : {false, true})
          if (!general || head_dim == 64) cases.push_back({{dtype, 200, head_dim, general}, size});
  at_once(static_cast<int64_t>(cases.size()), [&](int64_t n) {
    const auto& [shape, size] = cases[static_cast<size_t>(n)];
    const Run run = run_of(shape, size);
    if (run.results.o.empty()) return;  // said
    const Results want = spelled_out<float>(run.inputs, shape, run.scale);
    for (const auto& [name, of] : kResults) {
      if (of == &Results::d_bias) continue;  // there is no bias
      // Weights of 0 and 1 leave dQ and dK nothing but what O was rounded by.
      const double unit = of == &Results::d_k ? size : 1;
      const double allowed = shape.dtype == DataType::f32 ? 1e-5 : 0x1p-6;
      EXPECT_LE(error(run.results.*of, want.*of), allowed * unit)
          << name << " of " << shape << ", size " << size;
    }
  });
}

/// What makes scores of dot products.
enum class Score {
  hidden_by_booleans,
  negated,
  of_positions,
  times_numbers_of_heads,
  positive_part
};

/// The score_mod, or what else, that makes them; `cells` are [head, row, key].
void make_scores(Score kind, Program& program, Random& random, const Dims& cells,
                 graph::AttentionAttributes& a) {
  if (kind == Score::negated) a.attn_scale = -*a.attn_scale;
  if (kind == Score::of_positions) a.alibi_mask = true, a.right_bound = 0;
  ScoreSteps steps(program, cells);
  const auto is = [&](graph::PointwiseMode mode, std::vector<TensorId> inputs) {
    steps.apply(mode, std::move(inputs));
    a.score_mod = steps.modifier();
  };
  if (kind == Score::hidden_by_booleans) {
    const TensorId mask = program.add("mask", DataType::boolean, {1, 1, cells[2], cells[3]});
    program.allocate(mask);
    for (int64_t i = 0; i < cells[2]; ++i)
      for (int64_t j = 0; j < cells[3]; ++j)
        program.set(mask, i != 5 && random.chance(0.7) ? 1 : 0, 0, 0, i, j);
    is(graph::PointwiseMode::binary_select, {mask, steps.score(), steps.constant(-HUGE_VAL)});
  } else if (kind == Score::times_numbers_of_heads) {
    const TensorId factor = program.add("factor", DataType::f32, {1, cells[1], 1, 1});
    program.allocate(factor);
    program.fill(factor, [&] { return random.uniform(0.5, 2); });
    is(graph::PointwiseMode::mul, {steps.score(), factor});
  } else if (kind == Score::positive_part) {
    is(graph::PointwiseMode::max, {steps.score(), steps.constant(0)});
  }
}

// One multiply-add takes such scores to their exponents.
TEST_F(LargeScoresOnGpu, OtherScoresOfAnySizeAreWeighedWithoutStatistics) {
  struct Case {
    AttentionShape shape;
    Score score;
    double size;
  };
  std::vector<Case> cases;
  for (DataType dtype : {DataType::bf16, DataType::f32})
    for (int64_t head_dim : {64, 128, 192})
      for (Score score : {Score::hidden_by_booleans, Score::negated, Score::of_positions,
                          Score::times_numbers_of_heads, Score::positive_part})
        for (double size : {1e6, 1e9, 1e30})
          if (dtype == DataType::bf16 || head_dim < 192)
            cases.push_back({{dtype, kHeads, 200, 200, head_dim}, score, size});
  at_once(static_cast<int64_t>(cases.size()), [&](int64_t n) {
    const Case& one = cases[static_cast<size_t>(n)];
    const auto change = [&](Program& program, graph::AttentionAttributes& a) {
      Random random(static_cast<uint64_t>(n));
      make_scores(one.score, program, random, one.shape.cells(), a);
    };
    const auto value = [&](Input input, int64_t, double normal) {
      return input == Input::q ? one.size * normal : normal;
    };
    Built built = build(attention_program(one.shape, change, value, false));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_reference(built.program, one.shape.dtype, kTwiceNaive))
        << one.shape << ", size " << one.size << ", score " << static_cast<int>(one.score);
  });
}

// The backward, a graph of its own, rotates queries and keys again: were they rounded otherwise
// than by the forward, a huge score would lie far above its row's maximum, or below.
TEST_F(LargeScoresOnGpu, WeightsOfRotatedDotsOfAnySizeAddUpToOne) {
  struct Case {
    int64_t head_dim;
    graph::RopePairing pairing;
    double size;
  };
  std::vector<Case> cases;
  for (int64_t head_dim : {64, 128, 192})
    for (graph::RopePairing pairing : {graph::RopePairing::halves, graph::RopePairing::interleaved})
      for (double size : {3e1, 1e3, 1e6, 1e9, 1e20}) cases.push_back({head_dim, pairing, size});
  at_once(static_cast<int64_t>(cases.size()), [&](int64_t n) {
    const Case& one = cases[static_cast<size_t>(n)];
    constexpr int64_t kLength = 200;
    Program program;
    graph::Graph& graph = program.graph;
    graph.io_dtype = DataType::bf16;
    graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
    const Dims dims{1, kHeads, kLength, one.head_dim}, row{1, kHeads, kLength, 1};
    Random random(static_cast<uint64_t>(n));
    const auto add = [&](const char* name, DataType dtype, const Dims& of) {
      const TensorId id = program.add(name, dtype, of);
      program.allocate(id);
      return id;
    };
    const auto input = [&](const char* name, double size) {
      const TensorId id = add(name, DataType::bf16, dims);
      program.fill(id, [&] { return size * random.normal(); });
      return id;
    };
    const TensorId angles = add("freqs", DataType::f32, {kLength, 1, 1, one.head_dim});
    program.fill(angles, [&] { return random.uniform(-100, 100); });
    const auto rotated = [&](const char* name, TensorId x) {
      graph::Rope rope;
      rope.x = x;
      rope.freqs = angles;
      rope.rope_dim = one.head_dim;
      rope.pairing = one.pairing;
      rope.y = program.add(name, DataType::bf16, dims);
      graph[rope.y].is_virtual = true;
      return rope;
    };
    const graph::Rope q = rotated("q_rotated", input("q", one.size)),
                      k = rotated("k_rotated", input("k", 1));
    graph::Sdpa op;
    op.attention.attn_scale = 1 / std::sqrt(static_cast<double>(one.head_dim));
    op.q = q.y, op.k = k.y, op.v = input("v", 1);
    op.o = add("o", DataType::bf16, dims);
    op.max = add("max", DataType::f32, row);
    op.sum_exp = add("sum_exp", DataType::f32, row);
    graph::SdpaBackward gradient;
    gradient.q = op.q, gradient.k = op.k, gradient.v = op.v, gradient.o = op.o;
    gradient.max = op.max, gradient.sum_exp = op.sum_exp;
    gradient.attention = op.attention;
    gradient.d_o = input("dO", 1);
    gradient.d_q = add("dQ", DataType::bf16, dims);
    gradient.d_k = add("dK", DataType::bf16, dims);
    gradient.d_v = add("dV", DataType::bf16, dims);
    for (const auto& last : {graph::Node{"attention", op}, graph::Node{"gradient", gradient}}) {
      program.graph.nodes = {{"q_rope", q}, {"k_rope", k}, last};
      Built built = build(std::move(program));
      ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
      execute(built);
      program = std::move(built.program);
    }
    const auto sum = [&](TensorId id, int64_t head, int64_t column) {
      const graph::Tensor& tensor = program.graph[id];
      const void* const from = program.memory.at(tensor.uid).data();
      double all = 0;
      for (int64_t i = 0; i < kLength; ++i)
        all += load(*tensor.dtype, from, (head * kLength + i) * one.head_dim + column);
      return all;
    };
    double squares = 0, apart = 0;
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t column = 0; column < one.head_dim; ++column) {
        const double want = sum(gradient.d_o, head, column);
        squares += want * want;
        apart += std::pow(sum(gradient.d_v, head, column) - want, 2);
      }
    }
    EXPECT_LE(apart, std::pow(0x1p-7, 2) * squares)
        << "head_dim " << one.head_dim << ", size " << one.size;
  });
}

TEST_F(LargeScoresOnGpu, StepsOfHiddenAndLiftedRowsMatchTheDefinition) {
  run([](Random& random) {
    AttentionOptions options =
        random.structure().one_of({aligned_backward_options(), score_tile_options(), gpu_options(),
                                   f32_options(), aligned_f32_backward_options()});
    options.dtypes = {options.dtypes[0]};  // no f16, which is infinite there
    options.max_and_sum = options.bias = options.hidden_rows = 1;
    options.log2_input = 0;
    return random_training_step(random, options);
  });
}

}  // namespace
}  // namespace heddle::testing
