#include "rewrite/index_term.h"

#include <algorithm>
#include <cmath>

#include "rewrite/arithmetic.h"

namespace heddle::rewrite {

using graph::PointwiseMode;
using hlo::ElementType;
using hlo::Instruction;
using hlo::Opcode;

namespace {

constexpr int kMaxOperations = 16;
// Whole numbers that f32, in which calls compute indices, holds exactly.
constexpr double kExact = 1 << 24;

std::optional<PointwiseMode> mode_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::add:
      return PointwiseMode::add;
    case Opcode::subtract:
      return PointwiseMode::sub;
    case Opcode::multiply:
      return PointwiseMode::mul;
    case Opcode::minimum:
      return PointwiseMode::min;
    case Opcode::maximum:
      return PointwiseMode::max;
    case Opcode::negate:
      return PointwiseMode::neg;
    case Opcode::abs:
      return PointwiseMode::abs;
    default:
      return std::nullopt;
  }
}

IndexTerm number(double value) {
  IndexTerm term;
  term.number = value;
  return term;
}

IndexTerm product(IndexTerm a, IndexTerm b) {
  IndexTerm term;
  term.kind = IndexTerm::Kind::operation;
  term.mode = PointwiseMode::mul;
  term.inputs.push_back(std::move(a));
  term.inputs.push_back(std::move(b));
  return term;
}

class Reader {
 public:
  Reader(Elements& elements, const Roles& roles) : elements_(elements), roles_(roles) {}

  std::optional<IndexTerm> read(const Element& element) {
    const Element e = elements_.resolve(element);
    const Instruction* x = e.x;
    if (const auto value = elements_.splat(e.frame, x)) return number(*value);
    if (auto term = read_index(e)) return term;
    if (auto term = read_operation(e)) return term;
    if (!is_wide_floating(x->shape().type()) || (varies(e, roles_.rows) && varies(e, roles_.keys)))
      return std::nullopt;
    IndexTerm term;
    term.kind = IndexTerm::Kind::operand;
    term.place = e;
    return term;
  }

 private:
  /// Whether an iota of this type counts to `last`, and f32 does.
  static bool holds(ElementType type, int64_t last) {
    if (static_cast<double>(last) > kExact) return false;
    return type == ElementType::s32 || last <= largest_exact(type);
  }

  std::optional<IndexTerm> read_index(const Element& e) const {
    if (!e.x->is(Opcode::iota)) return std::nullopt;
    const Index& along = e.at[e.x->iota_dimension()];
    if (along.empty()) return number(0);
    const Index axes[] = {roles_.batch, roles_.query_heads(), roles_.rows, roles_.keys};
    const auto* axis = std::find(std::begin(axes), std::end(axes), along);
    if (axis == std::end(axes) || !holds(e.x->shape().type(), elements_.size(along) - 1))
      return std::nullopt;
    IndexTerm term;
    term.kind = IndexTerm::Kind::index;
    term.axis = static_cast<int>(axis - std::begin(axes));
    return term;
  }

  std::optional<IndexTerm> read_operation(const Element& e) {
    const Instruction* x = e.x;
    const auto operand = [&](int i) {
      const Instruction* y = x->operand(i);
      return Element{e.frame, y, y->shape().is_scalar() ? std::vector<Index>{} : e.at};
    };
    const bool is_whole = x->shape().type() == ElementType::s32;
    if ((!is_whole && !is_wide_floating(x->shape().type())) || ++operations_ > kMaxOperations)
      return std::nullopt;
    if (x->is(Opcode::convert)) {
      const bool of_whole = x->operand(0)->shape().type() == ElementType::s32;
      if (is_whole || (!of_whole && !is_rounding(x))) return std::nullopt;
      auto term = read(operand(0));
      if (!term || !term->has_index()) return term;
      // Distances, and their products, that a narrower type rounds are other numbers.
      const int64_t exact = largest_exact(x->shape().type());
      const bool rounds = of_whole ? !(largest(*term) <= static_cast<double>(exact))
                                   : largest_exact(x->operand(0)->shape().type()) > exact;
      return rounds ? std::nullopt : std::move(term);
    }
    const auto mode = mode_of(x->opcode());
    if (!mode) return std::nullopt;
    IndexTerm term;
    term.kind = IndexTerm::Kind::operation;
    term.mode = *mode;
    for (int i = 0; i < x->operand_count(); ++i) {
      auto input = read(operand(i));
      if (!input) return std::nullopt;
      term.inputs.push_back(std::move(*input));
    }
    if (is_whole && !(largest(term) <= kExact)) return std::nullopt;
    // So are those of a narrower type's own arithmetic; XLA rounds it on a GPU, on a CPU it may
    // not.
    const int64_t exact = is_whole ? INT64_MAX : largest_exact(x->shape().type());
    if (exact < kExact && term.has_index() &&
        !(of_whole_numbers(term) && largest(term) <= static_cast<double>(exact)))
      return std::nullopt;
    return term;
  }

  static bool of_whole_numbers(const IndexTerm& term) {
    if (term.kind == IndexTerm::Kind::number) return term.number == std::floor(term.number);
    return term.kind != IndexTerm::Kind::operand &&
           std::all_of(term.inputs.begin(), term.inputs.end(), of_whole_numbers);
  }

  /// No value of a term of whole numbers is larger in size.
  double largest(const IndexTerm& term) const {
    switch (term.kind) {
      case IndexTerm::Kind::number:
        return std::abs(term.number);
      case IndexTerm::Kind::index: {
        const Index axes[] = {roles_.batch, roles_.query_heads(), roles_.rows, roles_.keys};
        return static_cast<double>(elements_.size(axes[term.axis]));
      }
      case IndexTerm::Kind::operand:
        return INFINITY;
      case IndexTerm::Kind::operation:
        break;
    }
    double result = term.mode == PointwiseMode::mul ? 1 : 0;
    for (const IndexTerm& input : term.inputs) {
      const double size = largest(input);
      result = term.mode == PointwiseMode::mul ? result * size : result + size;
    }
    return result;
  }

  Elements& elements_;
  const Roles& roles_;
  int operations_ = 0;
};

}  // namespace

bool IndexTerm::has_index() const {
  return kind == Kind::index || std::any_of(inputs.begin(), inputs.end(),
                                            [](const IndexTerm& t) { return t.has_index(); });
}

std::vector<const IndexTerm*> IndexTerm::operands() const {
  if (kind == Kind::operand) return {this};
  std::vector<const IndexTerm*> all;
  for (const IndexTerm& input : inputs)
    for (const IndexTerm* operand : input.operands()) all.push_back(operand);
  return all;
}

std::optional<IndexTerm> index_term(Elements& elements, const Algebra& algebra, const Roles& roles,
                                    const Monomial& monomial) {
  Reader reader(elements, roles);
  std::optional<IndexTerm> term;
  if (monomial.coefficient != 1) term = number(monomial.coefficient);
  for (const Power& p : monomial.factors) {
    const Atom& atom = algebra.at(p.atom);
    if (atom.kind != AtomKind::element || p.exponent < 1) return std::nullopt;
    for (int i = 0; i < p.exponent; ++i) {
      auto factor = reader.read(atom.element);
      if (!factor) return std::nullopt;
      term = term ? product(std::move(*term), std::move(*factor)) : std::move(*factor);
    }
  }
  return term && term->has_index() ? term : std::nullopt;
}

}  // namespace heddle::rewrite
