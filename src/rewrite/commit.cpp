#include "rewrite/commit.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "graph/text.h"
#include "hlo/build.h"
#include "hlo/quoting.h"
#include "rewrite/carry.h"
#include "rewrite/fully_masked_rows.h"
#include "rewrite/labelled.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;

namespace {

Result<Instruction*> converted(Instruction* x, hlo::ElementType type) {
  return x->shape().type() == type ? Result<Instruction*>(x) : hlo::make_convert(x, type);
}

class Writer {
 public:
  Writer(hlo::Module& module, const Elements& elements)
      : elements_(elements), carrier_(elements, instructions_) {
    for (Computation* computation : module.computations()) {
      computations_[computation] = computation;
      for (Instruction* x : computation->instructions()) instructions_[x] = x;
    }
  }

  /// `forward`: the results of the forward call in frame `forward_home`.
  Result<std::vector<Instruction*>> write(const Plan& plan,
                                          const std::vector<Instruction*>& forward,
                                          int forward_home) {
    Computation& home = home_of(plan);
    std::vector<Instruction*> operands;
    std::vector<Instruction*> bare;    // the same before factors, and
    std::vector<Instruction*> wholes;  // before anything else is made of them
    for (const Operand& operand : plan.operands) {
      HEDDLE_ASSIGN(Instruction * x, whole(plan, operand, forward, forward_home));
      bare.push_back(x);
      if (!operand.times.empty()) {
        const Index all = operand.axes.canonical();
        HEDDLE_ASSIGN(x, reordered(elements_, {x, flat(operand.place.at)}, all));
        HEDDLE_ASSIGN(x, multiplied({x, all}, operand.times, plan.home, plan.dtype));
      }
      if (operand.share_by) {
        HEDDLE_ASSIGN(x, share(plan, operand, x, forward));
      }
      wholes.push_back(x);
      HEDDLE_ASSIGN(x, made(operand, x));
      if (operand.cut) {
        HEDDLE_ASSIGN(x, cut(x, *operand.cut));
      }
      if (!operand.of_forward && !operand.direct) {
        HEDDLE_ASSIGN(x, canonical_copy(x, operand.labels(), operand.axes));
      }
      operands.push_back(x);
    }
    hlo::CustomCall call;
    call.target = kCallTarget;
    std::vector<hlo::Shape> shapes;
    for (const CallResult& result : plan.results) shapes.emplace_back(result.type, result.dims);
    shapes.emplace_back(hlo::ElementType::u8, std::vector<int64_t>{plan.workspace_bytes});
    call.shape = hlo::Shape::tuple(std::move(shapes));
    call.backend_config = "{graph = " + hlo::quote(plan.text) + "}";
    HEDDLE_ASSIGN(Instruction * made,
                  hlo::make_custom_call(home, operands, std::move(call),
                                        plan.backward ? "attention_backward" : "attention"));
    std::vector<Instruction*> values;
    for (size_t i = 0; i < plan.results.size(); ++i) {
      HEDDLE_ASSIGN(Instruction * value,
                    hlo::make_get_tuple_element(made, static_cast<int64_t>(i)));
      values.push_back(value);
      if (const auto& taken_off = plan.results[i].taken_off) {
        HEDDLE_ASSIGN(value, less(plan.results[i], value, values[i - 1], *taken_off));
      }
      if (plan.results[i].target) HEDDLE_TRY(replace(plan, i, value, wholes));
    }
    for (const FactorGradient& gradient : plan.factor_gradients)
      HEDDLE_TRY(replace(plan, gradient, wholes, bare, values));
    return values;
  }

 private:
  /// What an operand is made of, in the plan's home.
  Result<Instruction*> whole(const Plan& plan, const Operand& operand,
                             const std::vector<Instruction*>& forward, int forward_home) {
    Instruction* x = nullptr;
    if (operand.of_forward) {
      x = forward[*operand.of_forward];
    } else if (operand.made == Made::key) {
      HEDDLE_ASSIGN(x, key_of(operand));
    } else if (operand.made == Made::full_lengths) {
      return hlo::make_splat(home_of(plan), hlo::ElementType::s32,
                             static_cast<double>(operand.limit),
                             {elements_.size(operand.axes.batch)});
    } else if (operand.made == Made::table_starts) {
      return table_starts(home_of(plan), operand);
    } else if (operand.made == Made::logits) {
      return hlo::make_splat(home_of(plan), *operand.type, operand.value,
                             {elements_.size(operand.axes.heads)});
    } else if (operand.made == Made::filled) {
      return hlo::make_splat(home_of(plan), *operand.type, operand.value,
                             sizes(elements_, operand.axes.canonical()));
    } else {
      x = instructions_.at(operand.place.x);
    }
    // Another call's results in a loop's body are, to the loop that reads it back, its forward
    // iteration's.
    const bool of_other_body = operand.of_forward && forward_home != plan.home;
    const int from = of_other_body        ? plan.anchor.frame
                     : operand.of_forward ? plan.home
                                          : operand.place.frame;
    return carrier_.carry(x, from, plan.home);
  }

  Result<Instruction*> made(const Operand& operand, Instruction* x) {
    if (operand.made == Made::as_is)
      return operand.type && *operand.type != x->shape().type()
                 ? hlo::make_convert(x, *operand.type)
                 : Result<Instruction*>(x);
    if (operand.made == Made::key || operand.made == Made::full_lengths ||
        operand.made == Made::logits || operand.made == Made::filled ||
        operand.made == Made::table_starts)
      return x;
    if (operand.made == Made::as_f32) return hlo::make_convert(x, hlo::ElementType::f32);
    if (operand.made == Made::negated) return hlo::make_unary(hlo::Opcode::not_, x);
    if (operand.made == Made::real_part) return hlo::make_unary(hlo::Opcode::real, x);
    if (operand.made == Made::imaginary_part) return hlo::make_unary(hlo::Opcode::imag, x);
    const auto with = [&](hlo::Opcode opcode, Instruction* a, int64_t number) {
      auto splat = hlo::make_splat(*a->computation(), a->shape().type(),
                                   static_cast<double>(number), a->shape().dims());
      return splat ? hlo::make_binary(opcode, a, *splat) : splat;
    };
    using hlo::Opcode;
    switch (operand.made) {
      case Made::lengths: {
        // Bounded before the sum, so that it cannot overflow.
        HEDDLE_ASSIGN(x, with(Opcode::maximum, x, -operand.plus));
        HEDDLE_ASSIGN(x, with(Opcode::minimum, x, operand.limit - operand.plus));
        return operand.plus == 0 ? Result<Instruction*>(x) : with(Opcode::add, x, operand.plus);
      }
      case Made::low_half:
        return with(Opcode::and_, x, 0xFFFF);
      default:
        return with(Opcode::shift_right_arithmetic, x, 16);
    }
  }

  static Result<Instruction*> cut(Instruction* x, const CutColumns& columns) {
    std::vector<hlo::SliceDimension> slice;
    for (int dim = 0; dim < x->shape().rank(); ++dim) slice.push_back({0, x->shape().dim(dim), 1});
    slice[columns.dim] = {columns.first, columns.first + (columns.count - 1) * columns.step + 1,
                          columns.step};
    return hlo::make_slice(x, std::move(slice));
  }

  /// The number of the first row of each batch entry in tables that hold all entries' rows.
  Result<Instruction*> table_starts(Computation& home, const Operand& operand) {
    const int64_t batch = elements_.size(operand.axes.batch);
    HEDDLE_ASSIGN(Instruction * entry,
                  hlo::make_iota(home, hlo::Shape(hlo::ElementType::s32, {batch}), 0));
    HEDDLE_ASSIGN(Instruction * rows, hlo::make_splat(home, hlo::ElementType::s32,
                                                      static_cast<double>(operand.limit), {batch}));
    return hlo::make_binary(hlo::Opcode::multiply, entry, rows);
  }

  Computation& home_of(const Plan& plan) {
    return *computations_.at(elements_.frames()[plan.home].computation);
  }

  /// The two words of a key as one array, where they are.
  Result<Instruction*> key_of(const Operand& operand) {
    Computation& computation =
        *computations_.at(elements_.frames()[operand.place.frame].computation);
    std::vector<Instruction*> words;
    for (const RngDropoutMask::KeyWord& word : operand.key) {
      Instruction* x =
          word.place ? instructions_.at(word.place->x)
                     : hlo::make_constant(computation,
                                          hlo::Literal::scalar(hlo::ElementType::u32, word.value));
      if (x->shape().type() != hlo::ElementType::u32) {
        HEDDLE_ASSIGN(x, hlo::make_convert(x, hlo::ElementType::u32));
      }
      HEDDLE_ASSIGN(x, hlo::make_reshape(x, {1}));
      words.push_back(x);
    }
    return hlo::make_concatenate(std::move(words), 0);
  }

  /// A dense [B, S, H, D] copy.
  Result<Instruction*> canonical_copy(Instruction* x, const Index& labels, const Axes& axes) {
    HEDDLE_ASSIGN(x, reordered(elements_, {x, labels}, axes.canonical()));
    return hlo::make_reshape(x, {elements_.size(axes.batch), elements_.size(axes.rows),
                                 elements_.size(axes.heads), elements_.size(axes.columns)});
  }

  /// `x`, of `operand`, times what the keys of its call weigh of each row: exp(maximum - number)
  /// times the sum of exponentials less the maximum. Of a row that sees none of them, whose maximum
  /// is -inf, that is 0, whatever is taken off.
  Result<Instruction*> share(const Plan& plan, const Operand& operand, Instruction* x,
                             const std::vector<Instruction*>& forward) {
    const Index rows = flat({plan.roles.batch, plan.roles.query_heads(), plan.roles.rows});
    const Index all = operand.axes.canonical();
    HEDDLE_ASSIGN(Instruction * maximum, reordered(elements_, {forward[1], rows}, rows));
    HEDDLE_ASSIGN(Instruction * sum, reordered(elements_, {forward[2], rows}, rows));
    const hlo::ElementType wide = maximum->shape().type();
    HEDDLE_ASSIGN(Instruction * by, carrier_.carry(instructions_.at(operand.share_by->x),
                                                   operand.share_by->frame, plan.home));
    HEDDLE_ASSIGN(by, converted(by, wide));
    HEDDLE_ASSIGN(by, reordered(elements_, {by, flat(operand.share_by->at)}, rows));
    HEDDLE_ASSIGN(by, hlo::make_binary(hlo::Opcode::subtract, maximum, by));
    HEDDLE_ASSIGN(by, hlo::make_unary(hlo::Opcode::exponential, by));
    HEDDLE_ASSIGN(by, hlo::make_binary(hlo::Opcode::multiply, by, sum));
    const auto everywhere = [&](double value) {
      return hlo::make_splat(*maximum->computation(), wide, value, maximum->shape().dims());
    };
    HEDDLE_ASSIGN(Instruction * none, everywhere(-std::numeric_limits<double>::infinity()));
    HEDDLE_ASSIGN(Instruction * nothing, everywhere(0));
    HEDDLE_ASSIGN(none, hlo::make_compare(maximum, none, "EQ"));
    HEDDLE_ASSIGN(by, hlo::make_select(none, nothing, by));
    if (operand.value != 1) {
      HEDDLE_ASSIGN(Instruction * value,
                    hlo::make_splat(*by->computation(), wide, operand.value, by->shape().dims()));
      HEDDLE_ASSIGN(by, hlo::make_binary(hlo::Opcode::multiply, by, value));
    }
    HEDDLE_ASSIGN(by, reordered(elements_, {by, rows}, all));
    HEDDLE_ASSIGN(x, converted(x, wide));
    HEDDLE_ASSIGN(x, reordered(elements_, {x, flat(operand.place.at)}, all));
    HEDDLE_ASSIGN(x, hlo::make_binary(hlo::Opcode::multiply, x, by));
    return converted(x, operand.type.value_or(plan.dtype));
  }

  /// `sum` of a row's exponentials, less `maximum`, as that of the same less `taken_off`. Of a row
  /// that sees no key it stays 0, its maximum being -inf, unless all that is taken off is that.
  Result<Instruction*> less(const CallResult& result, Instruction* sum, Instruction* maximum,
                            const Element& taken_off) {
    const Index labels = result.axes.canonical();
    Instruction* x = instructions_.at(taken_off.x);
    HEDDLE_ASSIGN(x, reordered(elements_, {x, flat(taken_off.at)}, labels));
    HEDDLE_ASSIGN(maximum, reordered(elements_, {maximum, labels}, labels));
    HEDDLE_ASSIGN(sum, reordered(elements_, {sum, labels}, labels));
    HEDDLE_ASSIGN(x, hlo::make_binary(hlo::Opcode::subtract, maximum, x));
    HEDDLE_ASSIGN(x, hlo::make_unary(hlo::Opcode::exponential, x));
    return hlo::make_binary(hlo::Opcode::multiply, sum, x);
  }

  /// `number`: of the plan's result that `value` is.
  Status replace(const Plan& plan, size_t number, Instruction* value,
                 const std::vector<Instruction*>& wholes) {
    const CallResult& result = plan.results[number];
    if (!result.direct) {
      Labelled whole{value, result.axes.canonical()};
      if (!result.summed.empty()) {
        HEDDLE_ASSIGN(whole.x, multiplied(whole, result.times, plan.home, value->shape().type()));
        HEDDLE_ASSIGN(whole.x, hlo::make_convert(whole.x, at_least_f32(whole.x->shape().type())));
        HEDDLE_ASSIGN(whole, reduced(elements_, whole, result.summed, hlo::Opcode::add));
      }
      HEDDLE_ASSIGN(value, reordered(elements_, whole, flat(result.place.at)));
    }
    if (result.adds_fully_masked_rows) {
      HEDDLE_ASSIGN(value, with_fully_masked_rows(plan, {value, flat(result.place.at)},
                                                  result.axes.columns, wholes));
    }
    if (result.summed.empty()) {
      HEDDLE_ASSIGN(value, multiplied({value, flat(result.place.at)}, result.times, plan.home,
                                      value->shape().type()));
    }
    return replace(result.target, value, result.factor);
  }

  /// O of a forward or dV of a backward, whose depth is called `columns`, with what rows that see
  /// no key add to it.
  Result<Instruction*> with_fully_masked_rows(const Plan& plan, const Labelled& value,
                                              const Index& columns,
                                              const std::vector<Instruction*>& wholes) {
    HEDDLE_ASSIGN(const std::vector<Instruction*> predicates, predicates_of(plan));
    const size_t number = plan.fully_masked_rows->operand;
    const Operand& operand = plan.operands[number];
    const Labelled source{wholes[number], operand.labels()};
    return plan.backward ? with_shares_of_gradients(elements_, plan, value, columns, source,
                                                    operand.axes.canonical(), predicates)
                         : with_means_of_values(elements_, plan, value, source, predicates);
  }

  Result<std::vector<Instruction*>> predicates_of(const Plan& plan) {
    std::vector<Instruction*> predicates;
    for (const Element& predicate : plan.fully_masked_rows->predicates) {
      HEDDLE_ASSIGN(Instruction * x,
                    carrier_.carry(instructions_.at(predicate.x), predicate.frame, plan.home));
      predicates.push_back(x);
    }
    return predicates;
  }

  /// `wholes` and `operands`, which are without factors, and the call's `results`.
  Status replace(const Plan& plan, const FactorGradient& gradient,
                 const std::vector<Instruction*>& wholes, const std::vector<Instruction*>& operands,
                 const std::vector<Instruction*>& results) {
    const auto as_vectors = [&](Instruction* x, const Operand& operand) -> Result<Labelled> {
      const Index all = operand.axes.canonical();
      HEDDLE_ASSIGN(x, reordered(elements_, {x, flat(operand.place.at)}, all));
      HEDDLE_ASSIGN(x, converted(x, at_least_f32(plan.dtype)));
      return Labelled{x, all};
    };
    HEDDLE_ASSIGN(const Labelled vectors,
                  as_vectors(operands[gradient.vectors], plan.operands[gradient.vectors]));
    Labelled with;
    if (gradient.result) {
      // dV calls the digits of its depth by names of its own.
      const CallResult& d_v = plan.results[*gradient.result];
      Instruction* x = results[*gradient.result];
      if (d_v.direct) {
        HEDDLE_ASSIGN(x, reordered(elements_, {x, flat(d_v.place.at)}, d_v.axes.canonical()));
      } else {
        HEDDLE_ASSIGN(x, hlo::make_reshape(x, vectors.x->shape().dims()));
      }
      HEDDLE_ASSIGN(x, converted(x, at_least_f32(plan.dtype)));
      with = {x, vectors.labels};
      if (plan.fully_masked_rows) {
        HEDDLE_ASSIGN(with.x, with_fully_masked_rows(plan, with, plan.roles.value_depth, wholes));
      }
    } else {
      HEDDLE_ASSIGN(with, as_vectors(operands[gradient.o], plan.operands[gradient.o]));
      if (plan.fully_masked_rows) {
        HEDDLE_ASSIGN(const std::vector<Instruction*> predicates, predicates_of(plan));
        const Labelled v{wholes[gradient.v], plan.operands[gradient.v].labels()};
        HEDDLE_ASSIGN(with.x, with_means_of_values(elements_, plan, with, v, predicates));
      }
    }
    HEDDLE_ASSIGN(Instruction * product,
                  hlo::make_binary(hlo::Opcode::multiply, vectors.x, with.x));
    HEDDLE_ASSIGN(product, multiplied({product, vectors.labels}, gradient.times, plan.home,
                                      product->shape().type()));
    const Index own = flat(gradient.place.at);
    Index over;
    for (Var v : vectors.labels)
      if (std::find(own.begin(), own.end(), v) == own.end()) over.push_back(v);
    HEDDLE_ASSIGN(const Labelled sum,
                  reduced(elements_, {product, vectors.labels}, over, hlo::Opcode::add));
    HEDDLE_ASSIGN(Instruction * value, reordered(elements_, sum, own));
    return replace(gradient.target, value, gradient.factor);
  }

  /// `factor` times `value` takes the place of `of`.
  Status replace(const Instruction* of, Instruction* value, double factor) {
    Instruction* target = instructions_.at(of);
    if (value->shape().dims() != target->shape().dims()) {
      HEDDLE_ASSIGN(value, hlo::make_reshape(value, target->shape().dims()));
    }
    if (factor != 1) {
      // The product is rounded once, the factor not to a narrow type of its own.
      const hlo::ElementType type = value->shape().type();
      HEDDLE_ASSIGN(value, converted(value, at_least_f32(type)));
      HEDDLE_ASSIGN(Instruction * by, hlo::make_splat(*value->computation(), value->shape().type(),
                                                      factor, value->shape().dims()));
      HEDDLE_ASSIGN(value, hlo::make_binary(hlo::Opcode::multiply, value, by));
      HEDDLE_ASSIGN(value, converted(value, type));
    }
    HEDDLE_ASSIGN(value, converted(value, target->shape().type()));
    target->replace_all_uses_with(value);
    instructions_[of] = value;  // what a later call's operand means by the target
    return {};
  }

  /// `array` times `factors`, rounded once, to `type`; its shape has a dimension for each label
  /// then.
  Result<Instruction*> multiplied(const Labelled& array, const std::vector<WeightFactor>& factors,
                                  int home, hlo::ElementType type) {
    if (factors.empty()) return array.x;
    const hlo::ElementType wide = at_least_f32(array.x->shape().type());
    HEDDLE_ASSIGN(Instruction * x, reordered(elements_, array, array.labels));
    HEDDLE_ASSIGN(x, converted(x, wide));
    for (const WeightFactor& factor : factors) {
      HEDDLE_ASSIGN(Instruction * by,
                    carrier_.carry(instructions_.at(factor.place.x), factor.place.frame, home));
      const bool is_predicate = by->shape().type() == hlo::ElementType::pred;
      if (!is_predicate) {
        HEDDLE_ASSIGN(by, converted(by, wide));
      }
      HEDDLE_ASSIGN(by, reordered(elements_, {by, flat(factor.place.at)}, array.labels));
      if (is_predicate) {
        HEDDLE_ASSIGN(Instruction * zero,
                      hlo::make_splat(*x->computation(), wide, 0, x->shape().dims()));
        HEDDLE_ASSIGN(x, hlo::make_select(by, x, zero));
        continue;
      }
      HEDDLE_ASSIGN(
          x, hlo::make_binary(factor.divides ? hlo::Opcode::divide : hlo::Opcode::multiply, x, by));
    }
    return converted(x, type);
  }

  const Elements& elements_;
  std::unordered_map<const Computation*, Computation*> computations_;
  Carrier::Instructions instructions_;
  Carrier carrier_;
};

}  // namespace

Status commit(hlo::Module& module, const Elements& elements,
              const std::vector<std::optional<Plan>>& plans) {
  Writer writer(module, elements);
  std::vector<std::vector<Instruction*>> values(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i]) continue;
    const std::vector<Instruction*> none;
    const int forward = plans[i]->forward;
    HEDDLE_ASSIGN(values[i], forward < 0
                                 ? writer.write(*plans[i], none, plans[i]->home)
                                 : writer.write(*plans[i], values[forward], plans[forward]->home));
  }
  return {};
}

}  // namespace heddle::rewrite
