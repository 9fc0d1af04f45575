#include "engine/cpu/scratch.h"

#include <algorithm>

#include "core/rounding.h"
#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu {

namespace {

class Layout {
 public:
  template <class T>
  int64_t take(int64_t count) {
    const int64_t at = end_;
    end_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return at;
  }
  int64_t bytes() const { return round_up(end_, kScratchAlignment); }

 private:
  int64_t end_ = 0;
};

/// Elements of a word, and words that a sum takes of so many elements (kernels/arithmetic.h).
int64_t pack_of(Products products) { return products == Products::singles ? 1 : 2; }
int64_t words_of(Products products, int64_t elements) {
  return parts_of(products) *
         round_up(divide_up(elements, pack_of(products)), are_by_tiles(products) ? 16 : 1);
}

/// Rows of the wider of Q and V while they are packed.
int64_t staging_words(const AttentionArguments& a, const KernelShape& shape, Products products) {
  const int64_t columns = std::max(a.qk_dim, a.v_dim);
  return shape.lanes *
         std::max(round_up(columns, shape.panel_columns), words_of(products, columns));
}

}  // namespace

template <class Real>
ForwardScratch forward_scratch(const ForwardPass<Real>& pass, const KernelShape& shape) {
  const AttentionArguments& a = pass.a;
  const int64_t panel = panel_rows(shape, pass.products), parts = parts_of(pass.products);
  // A tile that parts do not take is computed in panels of single numbers.
  const int64_t rows =
      round_up(pass.tile_rows, panel) + (parts > 1 ? int64_t{shape.panel_rows} : 0);
  const int64_t pack = pack_of(pass.products), words = words_of(pass.products, a.qk_dim);
  const int64_t packed_keys = pass.has_few_rows ? 0 : kForwardKeys;
  const int64_t scores = panel * kScorePitch;
  const int64_t steps = a.score.is_identity ? 0 : a.score.count;
  Layout layout;
  ForwardScratch at{};
  at.q_pitch = round_up(words, shape.lanes) + shape.lanes;
  at.o_pitch = round_up(a.v_dim, shape.panel_columns);
  at.q = layout.take<Real>(rows * at.q_pitch);
  at.o = layout.take<Real>(rows * at.o_pitch);
  if (pass.keeps_lost) at.o_lost = layout.take<Real>(rows * at.o_pitch);
  at.k = layout.take<Real>(packed_keys * words);
  at.v = layout.take<Real>((pass.has_few_rows ? rows : packed_keys / pack * parts) * at.o_pitch);
  at.s = layout.take<Real>(scores);
  at.p = pack > 1 ? layout.take<Real>(panel * (kForwardKeys / pack * parts + kPitchGap)) : at.s;
  at.staging = layout.take<Real>(staging_words(a, shape, pass.products));
  at.max = layout.take<Real>(rows + shape.lanes);
  at.sum = layout.take<Real>(rows + shape.lanes);
  at.sum_lost = layout.take<Real>(rows + shape.lanes);
  at.factors = layout.take<Real>(a.dropout.kind == DropoutKind::none ? 0 : kForwardKeys);
  at.rows = layout.take<Row>(rows);
  at.score_values = layout.take<ScoreValue<Real>>(steps);
  at.score_strips = layout.take<Real>(steps * kForwardKeys);
  if (pass.code_bytes > 0) {
    // Sets of four rows, whose parts are the 16 rows of a tile.
    const int64_t sets = divide_up(shape.few_rows, 4), columns = round_up(a.qk_dim, 64);
    const auto take_codes = [&](int64_t count) {
      return layout.take<char>(count * pass.code_bytes);
    };
    at.code_queries = take_codes(sets * 16 * columns);
    at.code_weights = layout.take<float>(sets * 16);
    at.code_rows = take_codes(16 * columns);
    at.code_parts = take_codes(sets * 16 * kForwardKeys);
    at.code_values = take_codes(64 * kForwardKeys);
    at.code_sums = layout.take<float>(16 * 64);
  }
  at.bytes = layout.bytes();
  return at;
}

template <class Real>
BackwardScratch backward_scratch(const BackwardPass<Real>& pass, const KernelShape& shape,
                                 Products products) {
  const AttentionArguments& a = pass.a;
  const int64_t panel = panel_rows(shape, products);
  const int64_t rows = round_up(shape.backward_rows, panel), keys = shape.backward_keys;
  const int64_t pack = pack_of(products), parts = parts_of(products);
  const int64_t q_words = words_of(products, a.qk_dim), o_words = words_of(products, a.v_dim);
  const int64_t cells = rows * (keys + kPitchGap);
  // Of pairs of rows: with tiles by keys, what a sum is over being neighbours.
  const int64_t paired = are_by_tiles(products) ? keys * (rows / 2 + kPitchGap) : cells / 2;
  const bool pairs = pack > 1;
  Layout layout;
  BackwardScratch at{};
  at.q_columns = round_up(a.qk_dim, shape.panel_columns);
  at.o_columns = round_up(a.v_dim, shape.panel_columns);
  at.q_pitch = round_up(q_words, shape.panel_columns) + kPitchGap;
  at.o_pitch = round_up(o_words, shape.panel_columns) + kPitchGap;
  at.k_columns = layout.take<Real>(keys * q_words);
  at.v_columns = layout.take<Real>(keys * o_words);
  at.k_rows = layout.take<Real>(keys / pack * parts * at.q_columns);
  at.d_k = layout.take<Real>(keys * at.q_columns);
  at.d_v = layout.take<Real>(keys * at.o_columns);
  at.q = layout.take<Real>(rows * at.q_pitch);
  at.d_o = layout.take<Real>(rows * at.o_pitch);
  at.p = layout.take<Real>(cells);
  at.d_s = layout.take<Real>(cells);
  at.q_rows = pairs ? layout.take<Real>(parts * rows / 2 * at.q_columns) : at.q;
  at.d_o_rows = pairs ? layout.take<Real>(parts * rows / 2 * at.o_columns) : at.d_o;
  at.p_rows = pairs ? layout.take<Real>(parts * paired) : at.p;
  at.d_s_rows = pairs ? layout.take<Real>(parts * paired) : at.d_s;
  at.d_s_keys = pairs ? layout.take<Real>(parts * cells / 2) : at.d_s;
  at.row_dot = layout.take<Real>(rows);
  at.one_key_rest = layout.take<Real>(rows);
  at.statistics = layout.take<RowStatistics<Real>>(rows);
  at.visible = layout.take<Interval>(rows);
  at.factors = layout.take<Real>(keys);
  at.dots = layout.take<Real>(keys);
  at.staging = layout.take<Real>(staging_words(a, shape, products));
  at.spill = layout.take<Real>(panel * at.q_columns);
  at.sum = layout.take<Real>(pass.sums_loads ? cells : 0);
  at.score_values = layout.take<ScoreValue<Real>>(pass.longest_score);
  at.score_strips = layout.take<Real>(pass.longest_score * keys);
  at.bytes = layout.bytes();
  return at;
}

template ForwardScratch forward_scratch(const ForwardPass<float>&, const KernelShape&);
template ForwardScratch forward_scratch(const ForwardPass<double>&, const KernelShape&);
template BackwardScratch backward_scratch(const BackwardPass<float>&, const KernelShape&, Products);
template BackwardScratch backward_scratch(const BackwardPass<double>&, const KernelShape&,
                                          Products);

}  // namespace heddle::engine::cpu
