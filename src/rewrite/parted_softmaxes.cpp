#include "rewrite/parted_softmaxes.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "hlo/build.h"
#include "rewrite/element.h"
#include "rewrite/merged_dots.h"

namespace heddle::rewrite {

using hlo::Instruction;
using hlo::Opcode;
using hlo::SliceDimension;

namespace {

constexpr size_t kMostMembers = 256;  // scores, softmax and their gradients, dropout among them
constexpr size_t kMostBuilt = 1024;
constexpr size_t kMostParts = 8;

/// Some of the numbers along one dimension of an array.
struct Part {
  int64_t dim = 0;
  SliceDimension range;

  int64_t count() const { return (range.limit - range.start + range.stride - 1) / range.stride; }
  friend bool operator==(const Part&, const Part&) = default;
  friend bool operator<(const Part& a, const Part& b) {
    const auto key = [](const Part& p) {
      return std::tuple(p.dim, p.range.start, p.range.limit, p.range.stride);
    };
    return key(a) < key(b);
  }
};

/// `count` numbers; the limit is behind the last of them.
Part part_of(int64_t dim, int64_t start, int64_t count, int64_t stride) {
  return {dim, {start, start + (count - 1) * stride + 1, count == 1 ? 1 : stride}};
}

using Dims = std::vector<int64_t>;

int64_t product(const Dims& dims, size_t from, size_t to) {
  return std::accumulate(dims.begin() + static_cast<int64_t>(from),
                         dims.begin() + static_cast<int64_t>(to), int64_t{1}, std::multiplies<>());
}

/// A part of an array of dims `from` as one of the same numbers with dims `to`; nothing if it is no
/// part of one dimension there.
std::optional<Part> reshaped(const Dims& from, const Dims& to, const Part& part) {
  const auto d = static_cast<size_t>(part.dim);
  const int64_t before = product(from, 0, d), size = from[d];
  if (size < 2) return std::nullopt;
  // The same dimension, or one that holds it beside others.
  int64_t outside = 1;
  for (size_t i = 0; i < to.size(); outside *= to[i++]) {
    if (to[i] < 2) continue;
    if (outside == before && to[i] == size) return Part{static_cast<int64_t>(i), part.range};
    if (outside > before || to[i] <= size || before % outside != 0) continue;
    const int64_t outer = before / outside;
    if (to[i] % (outer * size) != 0) continue;
    const int64_t inner = to[i] / (outer * size);
    if (outer == 1 && part.range.stride == 1)
      return Part{static_cast<int64_t>(i), {part.range.start * inner, part.range.limit * inner, 1}};
    if (inner == 1 && part.count() == 1)
      return part_of(static_cast<int64_t>(i), part.range.start, outer, size);
  }
  // One of those that the dimension is made of: the first, or the last.
  outside = 1;
  for (size_t i = 0; i < to.size(); outside *= to[i++]) {
    if (to[i] < 2 || to[i] >= size || size % to[i] != 0) continue;
    const int64_t inner = size / to[i];
    const SliceDimension& r = part.range;
    if (outside == before && r.stride == 1 && r.start % inner == 0 && r.limit % inner == 0)
      return Part{static_cast<int64_t>(i), {r.start / inner, r.limit / inner, 1}};
    if (outside == before * inner && r.stride == to[i] && r.start < r.stride &&
        part.count() == inner)
      return Part{static_cast<int64_t>(i), {r.start, r.start + 1, 1}};
  }
  return std::nullopt;
}

/// The dimension of operand `side` of `dot` that dimension `dim` of the result is; -1 if it is the
/// other's alone.
int64_t dot_dimension(const Instruction* dot, int side, int64_t dim) {
  const auto batch = side == 0 ? dot->lhs_batch_dims() : dot->rhs_batch_dims();
  const auto summed = side == 0 ? dot->lhs_contracting_dims() : dot->rhs_contracting_dims();
  const auto batches = static_cast<int64_t>(batch.size());
  if (dim < batches) return batch[dim];
  const int64_t own =
      dot->operand(side)->shape().rank() - batches - static_cast<int64_t>(summed.size());
  int64_t left = dim - batches - (side == 0 ? 0 : dot->shape().rank() - batches - own);
  if (left < 0 || left >= own) return -1;
  const auto has = [](std::span<const int64_t> dims, int64_t i) {
    return std::find(dims.begin(), dims.end(), i) != dims.end();
  };
  for (int64_t i = 0;; ++i)
    if (!has(batch, i) && !has(summed, i) && left-- == 0) return i;
}

/// What a part of an instruction's result is made of.
struct Sources {
  /// Of each operand its part, or nothing where all of it is read.
  std::vector<std::optional<Part>> of;
};

bool is_whole(const Instruction* x, const SliceDimension& range, int dim) {
  return range == SliceDimension{0, x->shape().dim(dim), 1};
}

/// The parts of the operands that `part` of `x` is made of by the same operation; nothing if it is
/// not.
std::optional<Sources> sources_of(const Instruction* x, const Part& part) {
  if (!x->shape().is_array() || !x->control_predecessors().empty()) return std::nullopt;
  Sources sources;
  sources.of.resize(x->operand_count());
  const int dim = static_cast<int>(part.dim);
  if (hlo::is_elementwise(x->opcode()) || x->is(Opcode::copy)) {
    for (int i = 0; i < x->operand_count(); ++i)
      if (hlo::same_dims(x->operand(i)->shape(), x->shape())) sources.of[i] = part;
    return sources;
  }
  switch (x->opcode()) {
    case Opcode::broadcast: {
      const auto dims = x->dimensions();
      const auto found = std::find(dims.begin(), dims.end(), part.dim);
      if (found != dims.end()) sources.of[0] = Part{found - dims.begin(), part.range};
      return sources;
    }
    case Opcode::transpose:
      sources.of[0] = Part{x->dimensions()[dim], part.range};
      return sources;
    case Opcode::reshape:
      sources.of[0] = reshaped(x->shape().dims(), x->operand(0)->shape().dims(), part);
      return sources.of[0] ? std::optional(sources) : std::nullopt;
    case Opcode::reduce: {
      if (x->operand_count() != 2) return std::nullopt;
      int64_t left = part.dim;
      const auto reduced = x->dimensions();
      for (int64_t i = 0;; ++i) {
        if (std::find(reduced.begin(), reduced.end(), i) != reduced.end() || left-- != 0) continue;
        sources.of[0] = Part{i, part.range};
        return sources;
      }
    }
    case Opcode::dot:
      for (int side : {0, 1})
        if (const int64_t own = dot_dimension(x, side, part.dim); own >= 0)
          sources.of[side] = Part{own, part.range};
      return sources;
    case Opcode::concatenate:
      if (x->dimensions()[0] == part.dim) return std::nullopt;
      std::fill(sources.of.begin(), sources.of.end(), part);
      return sources;
    case Opcode::slice:
      if (!is_whole(x->operand(0), x->slice()[dim], dim)) return std::nullopt;
      sources.of[0] = part;
      return sources;
    case Opcode::pad:
      if (x->padding()[dim] != hlo::PaddingDimension{}) return std::nullopt;
      sources.of[0] = part;
      return sources;
    default:
      return std::nullopt;
  }
}

/// The part of `user` that is made of this part of its operand `x`; nothing if it is no part.
std::optional<Part> part_of_user(const Instruction* user, const Instruction* x, const Part& part) {
  if (!user->shape().is_array()) return std::nullopt;
  const auto is_made_of = [&](const Part& candidate) {
    const auto sources = sources_of(user, candidate);
    if (!sources) return false;
    bool reads = false;
    for (int i = 0; i < user->operand_count(); ++i) {
      if (user->operand(i) != x) continue;
      if (sources->of[i] != part) return false;
      reads = true;
    }
    return reads;
  };
  if (user->is(Opcode::reshape)) {
    const auto found = reshaped(x->shape().dims(), user->shape().dims(), part);
    return found && is_made_of(*found) ? found : std::nullopt;
  }
  for (int64_t dim = 0; dim < user->shape().rank(); ++dim) {
    const Part candidate{dim, part.range};
    if (user->shape().dim(static_cast<int>(dim)) == x->shape().dim(static_cast<int>(part.dim)) &&
        is_made_of(candidate))
      return candidate;
  }
  return std::nullopt;
}

/// The part that `slice` cuts out along one dimension, whatever it cuts along others.
std::optional<Part> part_cut(const Instruction* slice, int dim) {
  const SliceDimension& range = slice->slice()[dim];
  if (is_whole(slice->operand(0), range, dim)) return std::nullopt;
  return part_of(dim, range.start, slice->shape().dim(dim), range.stride);
}

/// Whether numbers made of `x` one by one, or laid out otherwise, are multiplied by a matrix.
bool is_multiplied(const Instruction* x) {
  std::vector<const Instruction*> work{x};
  std::set<const Instruction*> seen{x};
  while (!work.empty() && seen.size() < kMostMembers) {
    const Instruction* at = work.back();
    work.pop_back();
    for (const Instruction* user : at->users()) {
      if (user->is(Opcode::dot)) return true;
      const bool passes_on = hlo::is_elementwise(user->opcode()) || user->is(Opcode::transpose) ||
                             user->is(Opcode::reshape) || user->is(Opcode::slice);
      if (passes_on && seen.insert(user).second) work.push_back(user);
    }
  }
  return false;
}

/// The parts in their order where each number is in one of them; none where one is in none, or in
/// several.
std::vector<Part> whole_of(std::vector<Part> parts, int64_t size) {
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (parts.size() < 2 || parts.size() > kMostParts) return {};
  const int64_t stride = parts[0].range.stride;
  int64_t next = 0;
  for (const Part& part : parts) {
    if (part.dim != parts[0].dim || part.range.stride != stride || part.range.start != next)
      return {};
    if (stride == 1) {
      next = part.range.limit;
    } else if (part.count() * stride == size) {
      ++next;
    } else {
      return {};
    }
  }
  return next == (stride == 1 ? size : stride) ? parts : std::vector<Part>{};
}

/// One softmax, and all that is made of its weights and knows its parts.
class Softmax {
 public:
  explicit Softmax(Instruction* exponential) : exponential_(exponential) {}

  Status take_apart() {
    if (!find_parts() || !find_members()) return {};
    for (Instruction* x : order_)
      for (Instruction* user : std::vector<Instruction*>(x->users().begin(), x->users().end())) {
        if (members_.contains(user)) continue;
        HEDDLE_TRY(replace_use(x, user));
      }
    for (Instruction* x : order_)
      if (x->is_root()) {
        HEDDLE_ASSIGN(Instruction * by, whole(x));
        x->computation()->set_root(by);
      }
    return {};
  }

 private:
  /// What `user`, no member, reads of `x` is made of its parts.
  Status replace_use(Instruction* x, Instruction* user) {
    const bool is_cut = user->is(Opcode::slice) && part_cut_out(user, x) >= 0;
    if (is_cut || sums_over_parts(user, x)) {
      HEDDLE_ASSIGN(Instruction * by, is_cut ? cut_again(user, x) : sum_over_parts(user, x));
      user->replace_all_uses_with(by);
      return {};
    }
    HEDDLE_ASSIGN(Instruction * by, whole(x));
    for (int i = 0; i < user->operand_count(); ++i)
      if (user->operand(i) == x) user->set_operand(i, by);
    return {};
  }

  /// The parts of the exponential that slices cut out of the weights.
  bool find_parts() {
    std::vector<Part> found;
    std::vector<const Instruction*> work{exponential_};
    std::set<const Instruction*> seen{exponential_};
    // A slice's part is followed back to the exponential by the way that led to it.
    std::map<const Instruction*, const Instruction*> from;
    while (!work.empty()) {
      if (seen.size() > kMostMembers) return false;
      const Instruction* x = work.back();
      work.pop_back();
      for (const Instruction* user : x->users()) {
        if (user->is(Opcode::slice) && is_multiplied(user))
          for (int dim = 0; dim < user->shape().rank(); ++dim)
            if (const auto part = part_cut(user, dim))
              if (const auto of = followed_back(from, x, *part)) found.push_back(*of);
        const bool passes_on = hlo::is_elementwise(user->opcode()) || user->is(Opcode::transpose) ||
                               user->is(Opcode::reshape) || user->is(Opcode::copy) ||
                               user->is(Opcode::slice);
        if (!passes_on || !seen.insert(user).second) continue;
        from[user] = x;
        work.push_back(user);
      }
    }
    if (found.empty()) return false;
    // Columns of keys, as a sink's, are no parts: their softmax is one.
    std::erase_if(found, [&](const Part& part) { return is_summed(part.dim); });
    parts_ = found.empty()
                 ? found
                 : whole_of(found, exponential_->shape().dim(static_cast<int>(found[0].dim)));
    return !parts_.empty();
  }

  std::optional<Part> followed_back(const std::map<const Instruction*, const Instruction*>& from,
                                    const Instruction* x, Part part) const {
    while (x != exponential_) {
      const auto sources = sources_of(x, part);
      const Instruction* before = from.at(x);
      std::optional<Part> of;
      if (sources)
        for (int i = 0; i < x->operand_count(); ++i)
          if (x->operand(i) == before) of = sources->of[i];
      if (!of) return std::nullopt;
      part = *of;
      x = before;
    }
    return part;
  }

  /// Whether the exponentials are summed along `dim`.
  bool is_summed(int64_t dim) const {
    std::vector<const Instruction*> readers(exponential_->users().begin(),
                                            exponential_->users().end());
    for (const Instruction* user : exponential_->users())
      if (user->is(Opcode::convert))
        readers.insert(readers.end(), user->users().begin(), user->users().end());
    return std::any_of(readers.begin(), readers.end(), [&](const Instruction* x) {
      const auto dims = x->dimensions();
      return x->is(Opcode::reduce) && std::find(dims.begin(), dims.end(), dim) != dims.end();
    });
  }

  /// What is made of the exponential and known by its parts, up to products and what is smaller
  /// than a number for each row.
  bool find_members() {
    const int64_t rows = rows_of();
    order_ = {exponential_};
    members_[exponential_] = parts_;
    for (size_t next = 0; next < order_.size(); ++next) {
      if (order_.size() > kMostMembers) return false;
      Instruction* x = order_[next];
      if (x != exponential_ && (x->is(Opcode::dot) || x->shape().element_count() < rows)) continue;
      for (Instruction* user : x->users()) {
        if (members_.contains(user)) continue;
        std::vector<Part> parts;
        for (const Part& part : members_.at(x))
          if (const auto of = part_of_user(user, x, part)) parts.push_back(*of);
        if (parts.size() != parts_.size()) continue;
        members_[user] = std::move(parts);
        order_.push_back(user);
      }
    }
    return true;
  }

  int64_t rows_of() const {
    int64_t rows = exponential_->shape().element_count();
    for (int64_t dim = 0; dim < exponential_->shape().rank(); ++dim)
      if (is_summed(dim))
        rows /= std::max<int64_t>(exponential_->shape().dim(static_cast<int>(dim)), 1);
    return rows;
  }

  /// Which part of `x`, a member, `slice` cuts out; -1 if it is none.
  int part_cut_out(const Instruction* slice, const Instruction* x) const {
    const std::vector<Part>& parts = members_.at(x);
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto part = part_cut(slice, static_cast<int>(parts[i].dim));
      if (part && part->range == parts[i].range) return static_cast<int>(i);
    }
    return -1;
  }

  /// Whether `dot` sums products of `x` along the dimension of its parts, as a gradient does of
  /// keys that heads share.
  bool sums_over_parts(const Instruction* dot, const Instruction* x) const {
    if (!dot->is(Opcode::dot) || !dot->control_predecessors().empty() ||
        dot->operand(0) == dot->operand(1))
      return false;
    const auto summed =
        dot->operand(0) == x ? dot->lhs_contracting_dims() : dot->rhs_contracting_dims();
    return std::find(summed.begin(), summed.end(), members_.at(x)[0].dim) != summed.end();
  }

  Result<Instruction*> sum_over_parts(Instruction* dot, Instruction* x) {
    const int side = dot->operand(0) == x ? 0 : 1;
    const auto own = side == 0 ? dot->lhs_contracting_dims() : dot->rhs_contracting_dims();
    const auto other = side == 0 ? dot->rhs_contracting_dims() : dot->lhs_contracting_dims();
    Instruction* sum = nullptr;
    for (const Part& part : members_.at(x)) {
      const int64_t dim = other[std::find(own.begin(), own.end(), part.dim) - own.begin()];
      std::vector<Instruction*> operands(2);
      HEDDLE_ASSIGN(operands[side], built(x, part));
      HEDDLE_ASSIGN(operands[1 - side], cut_out(dot->operand(1 - side), {dim, part.range}));
      Instruction* product =
          dot->computation()->add(Opcode::dot, dot->shape().without_layout(), std::move(operands),
                                  dot->attributes(), dot->name());
      if (sum) {
        HEDDLE_ASSIGN(product, hlo::make_binary(Opcode::add, sum, product));
      }
      sum = product;
    }
    return sum;
  }

  /// `slice` of `x` as what it cuts out of the part along other dimensions.
  Result<Instruction*> cut_again(const Instruction* slice, Instruction* x) {
    const Part& part = members_.at(x)[part_cut_out(slice, x)];
    HEDDLE_ASSIGN(Instruction * of, built(x, part));
    std::vector<SliceDimension> rest(slice->slice().begin(), slice->slice().end());
    rest[part.dim] = {0, part.count(), 1};
    if (of->shape().dims() == slice->shape().dims()) return of;
    return hlo::make_slice(of, std::move(rest));
  }

  /// `x`, a member, put together of its parts.
  Result<Instruction*> whole(Instruction* x) {
    if (const auto known = wholes_.find(x); known != wholes_.end()) return known->second;
    const std::vector<Part>& parts = members_.at(x);
    const int64_t dim = parts[0].dim;
    const bool is_interleaved = parts[0].range.stride > 1;
    std::vector<Instruction*> all;
    for (const Part& part : parts) {
      HEDDLE_ASSIGN(Instruction * one, built(x, part));
      if (is_interleaved) {
        Dims dims = one->shape().dims();
        dims.insert(dims.begin() + dim + 1, 1);
        HEDDLE_ASSIGN(one, hlo::make_reshape(one, std::move(dims)));
      }
      all.push_back(one);
    }
    HEDDLE_ASSIGN(Instruction * joined,
                  hlo::make_concatenate(std::move(all), is_interleaved ? dim + 1 : dim));
    if (is_interleaved) {
      HEDDLE_ASSIGN(joined, hlo::make_reshape(joined, x->shape().dims()));
    }
    return wholes_[x] = joined;
  }

  /// `part` of `x`, computed alone. What goes into products beside members is cut out of what the
  /// program has.
  Result<Instruction*> built(Instruction* x, const Part& part) {
    const auto known = built_.find({x, part});
    if (known != built_.end()) return known->second;
    HEDDLE_ASSIGN(Instruction * result, made(x, part));
    return built_[{x, part}] = result;
  }

  Result<Instruction*> made(Instruction* x, const Part& part) {
    if (x->is(Opcode::pad)) {
      HEDDLE_ASSIGN(Instruction * result, part_of_padded(x, part));
      if (result) return result;
    }
    if (x->is(Opcode::concatenate) && x->dimensions()[0] == part.dim) {
      if (Instruction* joined = part_joined(x, part)) return joined;
    }
    const bool goes_on = members_.contains(x) || built_.size() < kMostBuilt;
    const auto sources = goes_on ? sources_of(x, part) : std::nullopt;
    if (!sources || x->operand_count() == 0) return sliced(x, part);
    return made_of(x, part, *sources);
  }

  /// `x` of these parts of its operands.
  Result<Instruction*> made_of(Instruction* x, const Part& part, const Sources& sources) {
    std::vector<Instruction*> operands(x->operands().begin(), x->operands().end());
    for (int i = 0; i < x->operand_count(); ++i) {
      if (!sources.of[i]) continue;
      const bool is_beside = x->is(Opcode::dot) && !members_.contains(operands[i]);
      HEDDLE_ASSIGN(operands[i], is_beside ? cut_out(operands[i], *sources.of[i])
                                           : built(operands[i], *sources.of[i]));
    }
    if (x->is(Opcode::add))
      for (int i : {0, 1})
        if (is_number(operands[i], 0)) return operands[1 - i];
    return with_operands(x, part, std::move(operands));
  }

  /// `part` of `x` as the same operation of these operands.
  static Instruction* with_operands(Instruction* x, const Part& part,
                                    std::vector<Instruction*> operands) {
    Dims dims = x->shape().dims();
    dims[part.dim] = part.count();
    Instruction* result =
        x->computation()->add(x->opcode(), hlo::Shape(x->shape().type(), std::move(dims)),
                              std::move(operands), x->attributes(), x->name());
    if (x->is(Opcode::slice)) {
      std::vector<SliceDimension> slice(x->slice().begin(), x->slice().end());
      slice[part.dim] = {0, part.count(), 1};
      result->set("slice", std::move(slice));
    }
    return result;
  }

  /// `part` of what the program has, cut out before it is laid out: so it is the same array in
  /// whatever order it is read.
  Result<Instruction*> cut_out(Instruction* x, const Part& part) {
    const bool is_move = x->is(Opcode::transpose) || x->is(Opcode::reshape) || x->is(Opcode::copy);
    const auto sources = is_move ? sources_of(x, part) : std::nullopt;
    if (!sources) return sliced(x, part);
    HEDDLE_ASSIGN(Instruction * operand, cut_out(x->operand(0), *sources->of[0]));
    return with_operands(x, part, {operand});
  }

  static Result<Instruction*> sliced(Instruction* x, const Part& part) {
    std::vector<SliceDimension> slice;
    for (int64_t size : x->shape().dims()) slice.push_back({0, size, 1});
    slice[part.dim] = part.range;
    return hlo::make_slice(x, std::move(slice));
  }

  /// The operand of `concatenate` that is `part` of it; null if none is.
  static Instruction* part_joined(const Instruction* concatenate, const Part& part) {
    int64_t start = 0;
    for (Instruction* operand : concatenate->operands()) {
      const int64_t count = operand->shape().dim(static_cast<int>(part.dim));
      if (part == part_of(part.dim, start, count, 1)) return operand;
      start += count;
    }
    return nullptr;
  }

  /// `part` of `pad` where that is what the pad pads, or nothing of it; null where it is neither.
  Result<Instruction*> part_of_padded(Instruction* pad, const Part& part) {
    Instruction* x = pad->operand(0);
    const hlo::PaddingDimension& along = pad->padding()[part.dim];
    const int64_t step = along.interior + 1, count = x->shape().dim(static_cast<int>(part.dim));
    if (along == hlo::PaddingDimension{} || along.low < 0 || along.high < 0) return nullptr;
    if (part == part_of(part.dim, along.low, count, step)) {
      std::vector<hlo::PaddingDimension> rest(pad->padding().begin(), pad->padding().end());
      rest[part.dim] = {};
      const bool pads = std::any_of(rest.begin(), rest.end(),
                                    [](const auto& p) { return p != hlo::PaddingDimension{}; });
      return pads ? hlo::make_pad(x, pad->operand(1), std::move(rest)) : Result<Instruction*>(x);
    }
    const int64_t last = along.low + (count - 1) * step;
    const bool is_between =
        step > 1 && part.range.stride == step && (part.range.start - along.low) % step != 0;
    if (!is_between && part.range.limit > along.low && part.range.start <= last) return nullptr;
    Dims dims = pad->shape().dims();
    dims[part.dim] = part.count();
    return hlo::make_broadcast(pad->operand(1), std::move(dims), {});
  }

  Instruction* exponential_;
  std::vector<Part> parts_;  // of the exponential
  std::vector<Instruction*> order_;
  std::map<const Instruction*, std::vector<Part>> members_;
  std::map<std::pair<const Instruction*, Part>, Instruction*> built_;
  std::map<const Instruction*, Instruction*> wholes_;
};

}  // namespace

Status take_parted_softmaxes_apart(hlo::Computation& computation) {
  for (Instruction* x : computation.instructions())
    if (is_softmax(x) && x->shape().is_array() && x->shape().rank() > 0)
      HEDDLE_TRY(Softmax(x).take_apart());
  return {};
}

}  // namespace heddle::rewrite
