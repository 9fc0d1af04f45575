#include "rewrite/commit.h"

#include <algorithm>
#include <unordered_map>

#include "graph/text.h"
#include "hlo/build.h"
#include "hlo/quoting.h"
#include "rewrite/carry.h"

namespace heddle::rewrite {

using hlo::Computation;
using hlo::Instruction;

namespace {

Index flat(const std::vector<Index>& at) {
  Index all;
  for (const Index& index : at) all.insert(all.end(), index.begin(), index.end());
  return all;
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
    Computation& home = *computations_.at(elements_.frames()[plan.home].computation);
    std::vector<Instruction*> operands;
    for (const Operand& operand : plan.operands) {
      Instruction* x = nullptr;
      if (operand.of_forward) {
        x = forward[*operand.of_forward];
      } else if (operand.key) {
        HEDDLE_ASSIGN(x, key_of(operand));
      } else {
        x = instructions_.at(operand.place.x);
      }
      // Another call's results in a loop's body are, to the loop that reads it back, its twin's.
      const bool of_other_body = operand.of_forward && forward_home != plan.home;
      const int from = of_other_body        ? plan.anchor.frame
                       : operand.of_forward ? plan.home
                                            : operand.place.frame;
      if (from != plan.home) {
        HEDDLE_ASSIGN(x, carrier_.carry(x, from, plan.home));
      }
      if (!operand.of_forward && !operand.key && !operand.direct) {
        HEDDLE_ASSIGN(x, canonical_copy(x, operand.place.at, operand.axes));
      }
      operands.push_back(x);
    }
    hlo::CustomCall call;
    call.target = kCallTarget;
    std::vector<hlo::Shape> shapes;
    for (const CallResult& result : plan.results) shapes.emplace_back(result.type, result.dims);
    shapes.emplace_back(hlo::ElementType::u8, std::vector<int64_t>{plan.workspace_bytes});
    call.shape = hlo::Shape::tuple(std::move(shapes));
    call.backend_config =
        "{graph = " + hlo::quote(graph::write_text(plan.graph, graph::TextLayout::line)) + "}";
    HEDDLE_ASSIGN(Instruction * made,
                  hlo::make_custom_call(home, operands, std::move(call),
                                        plan.backward ? "attention_backward" : "attention"));
    std::vector<Instruction*> values;
    for (size_t i = 0; i < plan.results.size(); ++i) {
      HEDDLE_ASSIGN(Instruction * value,
                    hlo::make_get_tuple_element(made, static_cast<int64_t>(i)));
      values.push_back(value);
      if (plan.results[i].target) HEDDLE_TRY(replace(plan.results[i], value));
    }
    return values;
  }

 private:
  std::vector<int64_t> sizes(const Index& digits) const {
    std::vector<int64_t> result;
    for (Var v : digits) result.push_back(elements_.size(v));
    return result;
  }

  /// `x`, whose dimensions are the digits `from`, with the digits of `to` in that order.
  Result<Instruction*> reorder(Instruction* x, const Index& from, const Index& to) {
    Index present;
    std::vector<int64_t> permutation, dims, where;
    for (size_t i = 0; i < to.size(); ++i) {
      dims.push_back(elements_.size(to[i]));
      const auto at = std::find(from.begin(), from.end(), to[i]);
      if (at == from.end()) continue;
      permutation.push_back(at - from.begin());
      where.push_back(static_cast<int64_t>(i));
    }
    if (x->shape().dims() != sizes(from)) {
      HEDDLE_ASSIGN(x, hlo::make_reshape(x, sizes(from)));
    }
    if (!std::is_sorted(permutation.begin(), permutation.end())) {
      HEDDLE_ASSIGN(x, hlo::make_transpose(x, permutation));
    }
    if (where.size() != to.size()) {
      HEDDLE_ASSIGN(x, hlo::make_broadcast(x, dims, where));
    }
    return x;
  }

  /// The two words of a key as one array, where they are.
  Result<Instruction*> key_of(const Operand& operand) {
    Computation& computation =
        *computations_.at(elements_.frames()[operand.place.frame].computation);
    std::vector<Instruction*> words;
    for (const DrawnMask::KeyWord& word : *operand.key) {
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
  Result<Instruction*> canonical_copy(Instruction* x, const std::vector<Index>& at,
                                      const Axes& axes) {
    HEDDLE_ASSIGN(x, reorder(x, flat(at), axes.canonical()));
    return hlo::make_reshape(x, {elements_.size(axes.batch), elements_.size(axes.rows),
                                 elements_.size(axes.heads), elements_.size(axes.columns)});
  }

  Status replace(const CallResult& result, Instruction* value) {
    Instruction* target = instructions_.at(result.target);
    if (!result.direct) {
      HEDDLE_ASSIGN(value, reorder(value, result.axes.canonical(), flat(result.place.at)));
    }
    if (value->shape().dims() != target->shape().dims()) {
      HEDDLE_ASSIGN(value, hlo::make_reshape(value, target->shape().dims()));
    }
    if (result.factor != 1) {
      // The product is rounded once, the factor not to a narrow type of its own.
      const hlo::ElementType type = value->shape().type();
      const bool narrow = type == hlo::ElementType::bf16 || type == hlo::ElementType::f16;
      if (narrow) {
        HEDDLE_ASSIGN(value, hlo::make_convert(value, hlo::ElementType::f32));
      }
      HEDDLE_ASSIGN(Instruction * factor,
                    hlo::make_splat(*value->computation(), value->shape().type(), result.factor,
                                    value->shape().dims()));
      HEDDLE_ASSIGN(value, hlo::make_binary(hlo::Opcode::multiply, value, factor));
      if (narrow) {
        HEDDLE_ASSIGN(value, hlo::make_convert(value, type));
      }
    }
    target->replace_all_uses_with(value);
    instructions_[result.target] = value;  // what a later call's operand means by the target
    return {};
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
