#include "support/pointwise_programs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "graph/names.h"

namespace heddle::testing {

using graph::kNone;
using graph::PointwiseMode;
using graph::PointwiseNode;
using graph::TensorId;

namespace {

/// A tensor and what is known of its numbers.
struct Known {
  TensorId id = kNone;
  Dims dims;
  double lo = 0, hi = 0;
  bool is_exact = false;    ///< the same numbers in any arithmetic: steps may be taken of it
  bool is_truth = false;    ///< 0 or 1
  bool is_integer = false;  ///< of type i32 or boolean
  bool is_last = false;     ///< no other op has read it yet
};

class Draw {
 public:
  explicit Draw(Random& random) : random_(random), structure_(random.structure()) {
    program_.seed = random.seed(), program_.variant = random.variant();
    io_ = structure_.one_of({DataType::f32, DataType::bf16, DataType::f16});
    program_.graph.io_dtype = io_;
    program_.graph.intermediate_dtype = DataType::f32;
    const int64_t rank = structure_.integer(1, 4);
    // Rows of any length, some of them whole vectors.
    for (int64_t d = 0; d < rank; ++d) dims_.push_back(random.integer(1, rank < 3 ? 40 : 9));
    if (structure_.chance(0.5)) dims_[dims_.rank() - 1] = 8 * random.integer(1, rank < 2 ? 90 : 9);
  }

  Program run() {
    const int64_t inputs = structure_.integer(1, 4), ops = structure_.integer(1, 8);
    for (int64_t n = 0; n < inputs; ++n) add_input(n == 0);
    for (int64_t n = 0; n < ops; ++n) add_op(n + 1 == ops);
    return std::move(program_);
  }

 private:
  /// Any order of dims in memory, gaps anywhere, the last dim too; inputs may be broadcast by
  /// strides of 0.
  Dims strides(const Dims& of, bool is_written) {
    Dims result = of;
    std::vector<int> order(static_cast<size_t>(of.rank()));
    std::iota(order.begin(), order.end(), 0);
    if (structure_.chance(0.4)) {
      for (size_t n = order.size(); n > 1; --n)
        std::swap(order[n - 1],
                  order[static_cast<size_t>(structure_.integer(0, static_cast<int64_t>(n) - 1))]);
    }
    int64_t span = structure_.chance(0.2) ? 2 : 1;
    for (size_t n = order.size(); n-- > 0;) {
      const int d = order[n];
      result[d] = span;
      if (!is_written && structure_.chance(0.05)) {
        result[d] = 0;
        continue;
      }
      span *= of[d];
      if (structure_.chance(0.2)) span += structure_.one_of({1, 3, 8, 16});
      if (of[d] == 1) result[d] = 12345;
    }
    return result;
  }

  TensorId tensor(const std::string& name, DataType type, const Dims& of, bool is_written) {
    const Dims layout = structure_.chance(0.7) ? strides(of, is_written) : Dims{};
    const TensorId id = program_.add(name, type, of, layout);
    program_.allocate(id);
    return id;
  }

  void add_input(bool is_whole) {
    Known known;
    known.dims = dims_;
    for (int d = 0; d < dims_.rank() && !is_whole; ++d)
      if (structure_.chance(0.3)) known.dims[d] = 1;
    known.is_exact = true;
    const int64_t kind = structure_.integer(0, is_whole ? 5 : 9);
    const std::string name = "x" + std::to_string(known_.size());
    if (kind < 4) {  // numbers around 0, or above it
      const bool is_positive = structure_.chance(0.4);
      known.lo = is_positive ? 0.5 : -2, known.hi = 2;
      known.id = tensor(name, structure_.chance(0.6) ? io_ : random_float(), known.dims, false);
      program_.fill(known.id, [&] { return random_.uniform(known.lo, known.hi); });
    } else if (kind < 6) {
      known.lo = -9, known.hi = 9, known.is_integer = true;
      known.id = tensor(name, DataType::i32, known.dims, false);
      program_.fill(known.id, [&] { return static_cast<double>(random_.integer(-9, 9)); });
    } else if (kind < 8) {
      known.lo = 0, known.hi = 1, known.is_integer = known.is_truth = true;
      known.id = tensor(name, DataType::boolean, known.dims, false);
      program_.fill(known.id, [&] { return random_.chance(0.5) ? 1.0 : 0.0; });
    } else {  // a number: of rank 4 as they are, or of the others' rank
      known.lo = known.hi = structure_.one_of({0.75, 1.0, 2.0, -1.5});
      known.dims = {};
      const int rank = structure_.chance(0.5) ? 4 : dims_.rank();
      for (int d = 0; d < rank; ++d) known.dims.push_back(1);
      known.id = program_.add(name, DataType::f32, known.dims);
      if (kind == 8) {
        program_.graph[known.id].constant = known.lo;
      } else {
        program_.graph[known.id].pass_by_value = structure_.chance(0.5);
        program_.allocate(known.id);
        program_.fill(known.id, [&] { return known.lo; });
      }
    }
    known_.push_back(known);
  }

  DataType random_float() {
    return structure_.one_of({DataType::f32, DataType::bf16, DataType::f16});
  }

  /// One of what is known that is as `fits` says, the latest more often; null if none is.
  template <class Fits>
  const Known* pick(const Fits& fits) {
    std::vector<const Known*> all;
    for (const Known& known : known_) {
      if (!fits(known)) continue;
      all.push_back(&known);
      if (known.is_last) all.insert(all.end(), 3, &known);
    }
    if (all.empty()) return nullptr;
    return all[static_cast<size_t>(structure_.integer(0, static_cast<int64_t>(all.size()) - 1))];
  }

  /// What the mode makes of inputs that it may be given; nothing if there are none such.
  std::optional<Known> operands_of(PointwiseMode mode, PointwiseNode& op) {
    using Mode = PointwiseMode;
    const auto any = [](const Known&) { return true; };
    const auto exact = [](const Known& x) { return x.is_exact; };
    const auto positive = [](const Known& x) { return x.lo >= 0.25; };
    const auto not_near_0 = [](const Known& x) { return x.lo >= 0.25 || x.hi <= -0.25; };
    const auto within = [](double bound) {
      return [bound](const Known& x) { return x.lo >= -bound && x.hi <= bound; };
    };
    Known made;
    const Known *a = nullptr, *b = nullptr, *c = nullptr;
    const auto one = [&](const auto& fits, double (*f)(double)) {
      a = pick(fits);
      if (a) made.lo = std::min(f(a->lo), f(a->hi)), made.hi = std::max(f(a->lo), f(a->hi));
    };
    const auto two = [&](const auto& left, const auto& right) {
      a = pick(left), b = pick(right);
      return a && b;
    };
    const auto corners = [&](auto&& f) {
      const double all[] = {f(a->lo, b->lo), f(a->lo, b->hi), f(a->hi, b->lo), f(a->hi, b->hi)};
      made.lo = *std::ranges::min_element(all), made.hi = *std::ranges::max_element(all);
    };
    switch (mode) {
      case Mode::identity:
        one(any, [](double x) { return x; });
        break;
      case Mode::neg:
        one(any, [](double x) { return -x; });
        break;
      case Mode::abs:
        one(any, [](double x) { return std::fabs(x); });
        if (a && a->lo < 0 && a->hi > 0) made.lo = 0;
        break;
      case Mode::exp:
        one(within(4), [](double x) { return std::exp(x); });
        break;
      case Mode::log:
        one(positive, [](double x) { return std::log(x); });
        break;
      case Mode::sqrt:
        one(positive, [](double x) { return std::sqrt(x); });
        break;
      case Mode::rsqrt:
        one(positive, [](double x) { return 1 / std::sqrt(x); });
        break;
      case Mode::reciprocal:
        one(not_near_0, [](double x) { return 1 / x; });
        break;
      case Mode::tanh_fwd:
        one(any, [](double x) { return std::tanh(x); });
        break;
      case Mode::sigmoid_fwd:
        one(any, [](double x) { return 1 / (1 + std::exp(-x)); });
        break;
      case Mode::erf:
        one(any, [](double x) { return std::erf(x); });
        break;
      case Mode::sin:
      case Mode::cos:
        one(within(20), [](double) { return 1.0; });
        made.lo = -1;
        break;
      case Mode::tan:
        one(within(1), [](double x) { return std::tan(x); });
        break;
      case Mode::floor:
        one(exact, [](double x) { return std::floor(x); });
        break;
      case Mode::ceil:
        one(exact, [](double x) { return std::ceil(x); });
        break;
      case Mode::add:
        if (two(any, any)) corners([](double x, double y) { return x + y; });
        break;
      case Mode::sub:
        if (two(any, any)) corners([](double x, double y) { return x - y; });
        break;
      case Mode::mul:
        if (two(any, any)) corners([](double x, double y) { return x * y; });
        break;
      case Mode::min:
        if (two(any, any)) corners([](double x, double y) { return std::fmin(x, y); });
        break;
      case Mode::max:
        if (two(any, any)) corners([](double x, double y) { return std::fmax(x, y); });
        break;
      case Mode::div:
        if (two(any, not_near_0)) corners([](double x, double y) { return x / y; });
        break;
      case Mode::pow:
        if (two(positive, within(2))) corners([](double x, double y) { return std::pow(x, y); });
        break;
      case Mode::mod:
        if (two(exact,
                [](const Known& x) { return x.is_exact && (x.lo >= 0.25 || x.hi <= -0.25); }))
          made.lo = -std::fmax(std::fabs(b->lo), std::fabs(b->hi)), made.hi = -made.lo;
        break;
      case Mode::cmp_eq:
      case Mode::cmp_neq:
      case Mode::cmp_lt:
      case Mode::cmp_le:
      case Mode::cmp_gt:
      case Mode::cmp_ge:
        two(exact, exact);
        break;
      case Mode::logical_and:
      case Mode::logical_or:
        two(exact, exact);
        break;
      case Mode::logical_not:
        a = pick(exact);
        break;
      case Mode::binary_select:
        a = pick([](const Known& x) { return x.is_exact; });
        b = pick(any), c = pick(any);
        if (b && c) made.lo = std::fmin(b->lo, c->lo), made.hi = std::fmax(b->hi, c->hi);
        break;
      case Mode::gen_index:
        a = pick(any);
        break;
      case Mode::relu_fwd:
      case Mode::elu_fwd:
      case Mode::gelu_fwd:
      case Mode::gelu_approx_tanh_fwd:
      case Mode::softplus_fwd:
      case Mode::swish_fwd:  // none is far from x, or from the clips
        a = pick(any);
        if (a) made.lo = std::fmin(2 * a->lo, -2) - 2, made.hi = std::fmax(2 * a->hi, 2) + 2;
        break;
      case Mode::relu_bwd:
      case Mode::elu_bwd:  // whose slopes jump
        if (two(any, exact)) widest(*a, made);
        break;
      case Mode::tanh_bwd:
      case Mode::sigmoid_bwd:
      case Mode::gelu_bwd:
      case Mode::gelu_approx_tanh_bwd:
      case Mode::softplus_bwd:
      case Mode::swish_bwd:
        if (two(any, any)) widest(*a, made);
        break;
    }
    random_numbers(structure_, mode, op.numbers);
    const Known* const all[] = {a, b, c};
    const int count = mode == Mode::gen_index ? 1 : graph::arity(mode);
    if (std::any_of(all, all + count, [](const Known* x) { return !x; })) return {};
    op.a = a->id, op.b = count > 1 ? b->id : kNone, op.c = count > 2 ? c->id : kNone;
    made.dims = a->dims;
    for (int n = 1; n < count; ++n) made.dims = broadcast(made.dims, all[n]->dims);
    const int first_value = mode == Mode::binary_select ? 1 : 0;
    const bool keeps_whole = mode == Mode::identity || mode == Mode::neg || mode == Mode::abs ||
                             mode == Mode::add || mode == Mode::sub || mode == Mode::mul ||
                             mode == Mode::min || mode == Mode::max || mode == Mode::mod ||
                             mode == Mode::binary_select;
    made.is_truth = graph::is_predicate(mode);
    made.is_integer = keeps_whole && std::all_of(all + first_value, all + count,
                                                 [](const Known* x) { return x->is_integer; });
    if (mode == Mode::floor || mode == Mode::ceil || made.is_truth) made.is_integer = true;
    made.is_exact = made.is_integer &&
                    std::all_of(all, all + count, [](const Known* x) { return x->is_exact; });
    if (made.is_truth) made.lo = 0, made.hi = 1;
    if (mode == Mode::gen_index) {
      op.axis = structure_.integer(0, made.dims.rank() - 1);
      made.lo = 0, made.hi = static_cast<double>(made.dims[static_cast<int>(op.axis)] - 1);
      made.is_integer = made.is_exact = true;
      // Every rank's longest dim, for variants to agree on what may be done with an index.
      made.hi = 1000;
    }
    if (!(std::fabs(made.lo) <= 1e4 && std::fabs(made.hi) <= 1e4)) return {};
    return made;
  }

  /// Slopes are below 2.
  static void widest(const Known& gradient, Known& made) {
    made.hi = 2 * std::fmax(std::fabs(gradient.lo), std::fabs(gradient.hi)), made.lo = -made.hi;
  }

  static bool is_one(const Dims& dims) { return element_count(dims) == 1; }
  static Dims broadcast(const Dims& x, const Dims& y) {
    if (x.rank() != y.rank()) return is_one(y) ? x : y;
    Dims all = x;
    for (int d = 0; d < x.rank(); ++d) all[d] = std::max(x[d], y[d]);
    return all;
  }

  void add_op(bool is_last) {
    PointwiseNode op;
    std::optional<Known> made;
    while (!made) {
      op = {};
      op.mode = static_cast<PointwiseMode>(
          structure_.integer(0, static_cast<int64_t>(PointwiseMode::gen_index)));
      made = operands_of(op.mode, op);
    }
    const std::string name = "y" + std::to_string(known_.size());
    DataType type = structure_.chance(0.6) ? io_ : random_float();
    if (made->is_truth && structure_.chance(0.5))
      type = structure_.chance(0.6) ? DataType::boolean : DataType::i32;
    else if (made->is_integer && structure_.chance(0.4))
      type = DataType::i32;
    const bool is_virtual = !is_last && structure_.chance(0.6);
    if (is_virtual) {
      made->id = program_.graph.add({.name = name, .dtype = type, .is_virtual = true});
    } else {
      made->id = tensor(name, type, made->dims, true);
      // 16 bits hold whole numbers up to 256.
      if (std::fmax(std::fabs(made->lo), std::fabs(made->hi)) > 256) made->is_exact = false;
      const double slack = 0.01 * (made->hi - made->lo) + 0.01 * std::fabs(made->lo);
      if (!made->is_exact) made->lo -= slack, made->hi += slack;
    }
    made->is_integer = type == DataType::i32 || type == DataType::boolean;
    made->is_last = true;
    op.y = made->id;
    for (Known& known : known_) known.is_last &= known.id != op.a && known.id != op.b;
    known_.push_back(*made);
    program_.graph.nodes.push_back({name, op});
  }

  Random &random_, &structure_;
  Program program_;
  DataType io_ = DataType::f32;
  Dims dims_;
  std::vector<Known> known_;
};

}  // namespace

Program random_pointwise(Random& random) { return Draw(random).run(); }

void random_numbers(Random& random, PointwiseMode mode, graph::ActivationNumbers& numbers) {
  using Mode = PointwiseMode;
  const auto maybe = [&](std::optional<double>& number, std::initializer_list<double> values) {
    if (random.chance(0.6)) number = random.one_of(values);
  };
  if (mode == Mode::relu_fwd || mode == Mode::relu_bwd) {
    maybe(numbers.relu_lower_clip, {-1.0, -0.25, 0.5});
    maybe(numbers.relu_upper_clip, {0.75, 1.0, 6.0});
    maybe(numbers.relu_lower_clip_slope, {0.125, -0.5, 1.5});
  }
  if (mode == Mode::elu_fwd || mode == Mode::elu_bwd) maybe(numbers.elu_alpha, {0.5, 1.5, -1.0});
  if (mode == Mode::softplus_fwd || mode == Mode::softplus_bwd)
    maybe(numbers.softplus_beta, {0.5, 3.0, -2.0});
  if (mode == Mode::swish_fwd || mode == Mode::swish_bwd)
    maybe(numbers.swish_beta, {0.5, 1.75, -1.0});
}

Program random_pointwise_around_norm(Random& random) {
  Random& structure = random.structure();
  Program program;
  program.seed = random.seed(), program.variant = random.variant();
  const DataType io = structure.one_of({DataType::f32, DataType::bf16, DataType::f16});
  program.graph.io_dtype = io, program.graph.intermediate_dtype = DataType::f32;
  const Dims dims{random.integer(1, 3), random.integer(1, 4), random.integer(1, 9),
                  8 * structure.integer(1, 9)};
  const auto input = [&](const char* name, const Dims& of) {
    const TensorId id = program.add(name, io, of);
    program.allocate(id);
    program.fill(id, [&] { return random.normal(); });
    return id;
  };
  const auto inner = [&](const char* name) {
    return program.graph.add({.name = name, .dtype = io, .is_virtual = true});
  };
  const TensorId x = input("x", dims), residual = input("residual", dims);
  const TensorId scale = input("scale", {1, 1, 1, dims[3]});
  const TensorId epsilon = program.add("epsilon", DataType::f32, {1, 1, 1, 1});
  program.graph[epsilon].constant = 1e-5;
  const TensorId sum = inner("sum"), normed = inner("normed"), gate = inner("gate");
  const TensorId y = program.add("y", io, dims, random_strides(random, dims));
  program.allocate(y);
  if (structure.chance(0.5)) {  // the sum is bound too
    program.graph[sum].is_virtual = false;
    program.graph[sum].dims = dims, program.graph[sum].strides = *dense_strides(dims);
    program.graph[sum].uid = 100;
    program.allocate(sum);
  }
  using Mode = PointwiseMode;
  program.graph.nodes = {
      {"add", PointwiseNode{.mode = Mode::add, .a = x, .b = residual, .y = sum}},
      {"norm", graph::RmsNorm{.x = sum, .scale = scale, .epsilon = epsilon, .y = normed}},
      {"gate", PointwiseNode{.mode = Mode::sigmoid_fwd, .a = normed, .y = gate}},
      {"silu", PointwiseNode{.mode = Mode::mul, .a = gate, .b = normed, .y = y}}};
  return program;
}

}  // namespace heddle::testing
