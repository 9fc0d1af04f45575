// The ways in which programs write attention (print_forms.py), each small and with a different size
// along every axis, or one size along all.
#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "rewrite/programs.h"
#include "support/part.h"

namespace heddle::testing {
namespace {

struct Expected {
  const char* name;
  int forwards, backwards;
};

class Form : public ::testing::TestWithParam<Expected> {
 protected:
  void SetUp() override {
    if (!part().has(std::hash<std::string_view>{}(GetParam().name)))
      GTEST_SKIP() << "of another part";
  }
};

TEST_P(Form, IsFusedAndKeepsItsMeaning) {
  const Expected& expected = GetParam();
  const Rewritten programs = rewritten(program_text(std::string("forms/") + expected.name));
  EXPECT_EQ(programs.forwards(), expected.forwards) << programs.reasons();
  EXPECT_EQ(programs.backwards(), expected.backwards) << programs.reasons();
  if (expected.forwards + expected.backwards == 0) {
    EXPECT_TRUE(hlo::equal(*programs.original, *programs.fused));
  } else {
    EXPECT_TRUE(same_meaning(programs, 1e-7, 1, draws_of(expected.name)));  // constants are f32
  }
}

TEST_P(Form, IsDoneOnce) {
  const Rewritten once = rewritten(program_text(std::string("forms/") + GetParam().name));
  const Rewritten twice = rewritten(hlo::write_text(*once.fused));
  EXPECT_EQ(twice.report.fusions.size(), 0u);
}

/// What `x` is made of, through the states of loops and the branches of conditionals.
std::set<const hlo::Instruction*> makers_of(const hlo::Module& module,
                                            std::vector<const hlo::Instruction*> work) {
  using hlo::Opcode;
  std::set<const hlo::Instruction*> makers;
  const auto element = [&](const hlo::Instruction* tuple, int64_t i) {
    work.push_back(tuple->is(Opcode::tuple) ? tuple->operand(static_cast<int>(i)) : tuple);
  };
  while (!work.empty()) {
    const hlo::Instruction* x = work.back();
    work.pop_back();
    if (!makers.insert(x).second) continue;
    const hlo::Instruction* from = x->is(Opcode::get_tuple_element) ? x->operand(0) : nullptr;
    const hlo::Instruction* loop = from && from->is(Opcode::while_) ? from : nullptr;
    if (from && from->is(Opcode::parameter)) {
      for (const hlo::Instruction* caller : module.callers(from->computation()))
        if (caller->is(Opcode::while_)) loop = caller;
    }
    if (loop) {
      element(loop->body()->root(), x->tuple_index());
      element(loop->operand(0), x->tuple_index());
    } else {
      work.insert(work.end(), x->operands().begin(), x->operands().end());
      if (x->is(Opcode::conditional))
        for (const hlo::Computation* branch : x->called_computations())
          work.push_back(branch->root());
    }
  }
  return makers;
}

// Of rows x keys nothing is left that no result is made of.
TEST_P(Form, LeavesNothingOfRowsAndKeys) {
  const Rewritten programs = rewritten(program_text(std::string("forms/") + GetParam().name));
  const auto needed = makers_of(*programs.fused, {programs.fused->entry()->root()});
  for (const rewrite::Fusion& fusion : programs.report.fusions)
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions()) {
        if (!x->shape().is_array()) continue;
        std::vector<int64_t> dims = x->shape().dims();
        const auto rows = std::find(dims.begin(), dims.end(), fusion.q_len);
        if (rows == dims.end()) continue;
        dims.erase(rows);
        const bool has_keys = std::find(dims.begin(), dims.end(), fusion.kv_len) != dims.end();
        EXPECT_TRUE(!has_keys || needed.contains(x)) << x->name();
      }
}

std::vector<Expected> fused() {
  std::vector<Expected> all;
  for (const char* name : {"additive_mask",
                           "alibi",
                           "alibi_and_bias",
                           "alibi_of_constants",
                           "alibi_trained",
                           "bias_full",
                           "bias_of_all_keys_but_the_first",
                           "bias_of_rows_and_of_the_last",
                           "bias_of_the_head_before",
                           "bias_per_head",
                           "by_logarithm",
                           "causal_by_cumsum",
                           "dropped_by_fold_in",
                           "dropped_by_generator",
                           "dropped_in_bf16",
                           "dropped_by_keys_of_keys",
                           "dropped_for_all_heads",
                           "dropped_out",
                           "drawn_to_be_dropped",
                           "dropped_by_a_draw_of_the_rate",
                           "given_to_be_dropped_and_masked_twice",
                           "dropped_transposed",
                           "dropped_with_scaled_queries",
                           "flash_by_hand",
                           "gradient_through_maximum",
                           "grouped_by_einsum",
                           "grouped_by_repeat",
                           "grouped_by_tile",
                           "heads_first",
                           "lengths_and_causal",
                           "lengths_are_data",
                           "lengths_of_both",
                           "mask_in_groups",
                           "mask_is_data",
                           "mask_of_either",
                           "mask_of_keys",
                           "queries_of_all_entries",
                           "queries_mapped_over_none",
                           "one_query_of_all_entries",
                           "values_of_all_heads_and_entries",
                           "keys_of_all_entries",
                           "keys_alone_of_each_entry",
                           "mask_is_data_twice",
                           "mask_is_data_twice_and_dropout",
                           "causal_or_shown_twice",
                           "sum_guarded_by_one",
                           "sum_guarded_by_one_late",
                           "sum_guarded_by_a_bound",
                           "sum_guarded_by_an_epsilon_late",
                           "sum_guarded_beside_zeros",
                           "sum_guarded_of_masked_exponentials",
                           "sum_guarded_in_groups",
                           "sum_guarded_beside_a_bias",
                           "exponentials_masked",
                           "exponentials_times_bits",
                           "exponentials_times_a_triangle",
                           "odd_depths",
                           "odd_value_depth_and_mask",
                           "two_biases",
                           "scaled_with_bias",
                           "subtracted_bias",
                           "gated_bias",
                           "shifted_by_numbers",
                           "shifted_by_a_mask",
                           "by_content_and_position",
                           "keys_of_content_and_of_positions",
                           "vector_of_each_pair_of_positions",
                           "products_of_two_pairs",
                           "by_content_and_position_masked_twice",
                           "fill_added_beside_a_bias",
                           "fill_added_within_reach",
                           "fill_added_within_reach_in_bf16",
                           "fill_within_reach",
                           "fill_within_reach_by_data",
                           "fills_added_within_reach",
                           "weights_by_equal_heads",
                           "equal_axes_biases",
                           "equal_axes_slopes_in_a_window",
                           "equal_axes_groups_and_sinks",
                           "equal_axes_dropped",
                           "equal_axes_segments",
                           "equal_axes_rotated",
                           "equal_axes_projections",
                           "bias_and_mask_of_numbers",
                           "mask_of_numbers_subtracted",
                           "causal_of_entries",
                           "fixed_lengths_of_entries",
                           "fixed_pattern_of_heads",
                           "prefix",
                           "window_and_first_keys",
                           "bytes_that_wrap",
                           "words_that_wrap",
                           "doubled_until_they_wrap",
                           "rope_by_narrow_tables",
                           "rope_by_slices",
                           "rope_stacked",
                           "rope_of_exchanged_halves",
                           "rope_by_constants",
                           "rope_of_neighbours",
                           "rope_of_pairs",
                           "rope_of_exchanged_neighbours",
                           "rope_of_last_columns",
                           "rope_of_first_neighbours",
                           "rope_of_first_halves",
                           "rope_of_two_angles",
                           "masked_twice",
                           "nested_selects",
                           "no_batch",
                           "no_maximum",
                           "largest_by_cells",
                           "normalised_late",
                           "renormalised",
                           "one_head",
                           "one_key_head",
                           "rope",
                           "scaled_by_a_parameter",
                           "scaled_by_head",
                           "scaled_by_head_with_bias",
                           "divided_by_a_parameter",
                           "divided_by_trained_numbers",
                           "scaled_by_a_square",
                           "scaled_and_biased_by_trained_numbers",
                           "biased_then_scaled",
                           "biased_then_divided",
                           "bias_trained_behind_a_gate",
                           "biased_then_scaled_by_trained_numbers",
                           "bias_trained_beside_a_larger_term",
                           "scaled_queries",
                           "scaled_twice",
                           "segments",
                           "sink_and_dropout",
                           "sink_and_mask",
                           "sink_below_a_maximum",
                           "sink_below_a_maximum_by_hand",
                           "sink_by_hand",
                           "sink_column",
                           "sink_column_in_groups",
                           "sink_of_one",
                           "sink_padded",
                           "sink_beside_padded_values",
                           "sink_before_zeros_in_groups",
                           "sink_beside_padded_values_of_key_heads",
                           "soft_capped",
                           "soft_capped_with_terms",
                           "window",
                           "window_of_fewer_keys",
                           "masked_after_softmax",
                           "mask_of_softmax",
                           "causal_by_softmax",
                           "scan_of_branches",
                           "clamped_indices",
                           "doubled_indices",
                           "halves_of_distances",
                           "mask_of_many",
                           "shifted_indices",
                           "truncated_mask",
                           "window_by_one_comparison",
                           "window_of_unsigned",
                           "rope_by_positions_of_entries",
                           "rope_of_keys_by_entries",
                           "rope_by_heads",
                           "shared_scores",
                           "with_bias_of_key_heads",
                           "bias_of_key_heads_in_bf16",
                           "padding_is_added",
                           "mask_is_data_and_dropout",
                           "one_row_by_dots",
                           "one_row_multiplied",
                           "one_row_multiplied_of_scaled_queries",
                           "one_row_multiplied_in_groups",
                           "rows_multiplied",
                           "keys_of_many_digits",
                           "weighed_by_heads",
                           "weights_times_heads",
                           "weighed_by_heads_in_groups",
                           "weighed_by_heads_of_groups",
                           "weighed_by_rows",
                           "weighed_by_keys",
                           "weighed_by_keys_of_all",
                           "weighed_by_a_number",
                           "weighed_by_rows_and_keys",
                           "weights_divided_by_heads",
                           "dropped_and_weighed_by_heads",
                           "weighed_by_heads_and_dropped",
                           "weighed_by_keys_and_dropped",
                           "weighed_by_heads_and_masked_twice",
                           "weighed_by_heads_in_bf16",
                           "one_row_multiplied_in_bf16"})
    all.push_back({name, 1, 0});
  for (const char* name : {"alibi_grad",
                           "alibi_and_bias_grad",
                           "alibi_of_constants_grad",
                           "alibi_trained_grad",
                           "additive_mask_grad",
                           "bias_full_grad",
                           "bias_of_all_keys_but_the_first_grad",
                           "bias_of_rows_and_of_the_last_grad",
                           "bias_of_the_head_before_grad",
                           "bias_per_head_grad",
                           "scaled_by_a_parameter_grad",
                           "scaled_by_head_grad",
                           "divided_by_a_parameter_grad",
                           "divided_by_trained_numbers_grad",
                           "scaled_by_a_square_grad",
                           "bias_trained_beside_a_larger_term_grad",
                           "by_logarithm_grad",
                           "dropped_by_fold_in_grad",
                           "dropped_by_generator_grad",
                           "dropped_for_all_heads_grad",
                           "dropped_in_bf16_grad",
                           "dropped_by_keys_of_keys_grad",
                           "dropped_by_keys_of_keys_grad.simplified",
                           "dropped_out_grad",
                           "dropped_transposed_grad",
                           "dropped_with_scaled_queries_grad",
                           "drawn_to_be_dropped_grad",
                           "dropped_by_a_draw_of_the_rate_grad",
                           "given_to_be_dropped_and_masked_twice_grad",
                           "flash_by_hand_grad",
                           "gradient_of_repeated_output",
                           "gradient_through_maximum_grad",
                           "grouped_by_einsum_grad",
                           "grouped_by_repeat_grad",
                           "grouped_by_tile_grad",
                           "heads_first_grad",
                           "mask_is_data_twice_and_dropout_grad",
                           "mask_is_data_twice_grad",
                           "causal_or_shown_twice_grad",
                           "sum_guarded_by_one_grad",
                           "sum_guarded_by_one_grad.simplified",
                           "sum_guarded_by_one_late_grad",
                           "sum_guarded_by_a_bound_grad",
                           "sum_guarded_by_a_bound_grad.simplified",
                           "sum_guarded_by_an_epsilon_late_grad",
                           "sum_guarded_by_an_epsilon_late_grad.simplified",
                           "sum_guarded_beside_zeros_grad",
                           "sum_guarded_of_masked_exponentials_grad",
                           "sum_guarded_of_masked_exponentials_grad.simplified",
                           "sum_guarded_in_groups_grad",
                           "sum_guarded_in_groups_grad.simplified",
                           "sum_guarded_beside_a_bias_grad",
                           "exponentials_masked_grad",
                           "exponentials_masked_grad.simplified",
                           "exponentials_times_bits_grad",
                           "exponentials_times_a_triangle_grad",
                           "odd_depths_grad",
                           "biased_then_scaled_grad",
                           "biased_then_divided_grad",
                           "bias_trained_behind_a_gate_grad",
                           "odd_value_depth_and_mask_grad",
                           "bias_and_mask_of_numbers_grad",
                           "mask_of_numbers_subtracted_grad",
                           "shifted_by_numbers_grad",
                           "shifted_by_a_mask_grad",
                           "by_content_and_position_grad",
                           "keys_of_content_and_of_positions_grad",
                           "vector_of_each_pair_of_positions_grad",
                           "products_of_two_pairs_grad",
                           "by_content_and_position_masked_twice_grad",
                           "fill_added_beside_a_bias_grad",
                           "fill_added_within_reach_grad",
                           "fill_added_within_reach_in_bf16_grad",
                           "fill_within_reach_grad",
                           "fill_within_reach_by_data_grad",
                           "fills_added_within_reach_grad",
                           "weights_by_equal_heads_grad",
                           "queries_of_all_entries_grad",
                           "queries_mapped_over_none_grad",
                           "one_query_of_all_entries_grad",
                           "values_of_all_heads_and_entries_grad",
                           "keys_of_all_entries_grad",
                           "keys_alone_of_each_entry_grad",
                           "equal_axes_slopes_in_a_window_grad",
                           "equal_axes_groups_and_sinks_grad",
                           "equal_axes_dropped_grad",
                           "equal_axes_segments_grad",
                           "equal_axes_rotated_grad",
                           "equal_axes_projections_grad",
                           "causal_of_entries_grad",
                           "fixed_lengths_of_entries_grad",
                           "fixed_pattern_of_heads_grad",
                           "prefix_grad",
                           "window_and_first_keys_grad",
                           "rope_by_narrow_tables_grad",
                           "rope_by_slices_grad",
                           "rope_stacked_grad",
                           "rope_of_exchanged_halves_grad",
                           "rope_by_constants_grad",
                           "rope_of_neighbours_grad",
                           "rope_of_pairs_grad",
                           "rope_of_exchanged_neighbours_grad",
                           "rope_of_last_columns_grad",
                           "rope_of_first_neighbours_grad",
                           "rope_of_first_halves_grad",
                           "rope_of_two_angles_grad",
                           "masked_twice_grad",
                           "mask_of_softmax_grad",
                           "causal_by_softmax_grad",
                           "scan_everything_saveable",
                           "nested_selects_grad",
                           "no_batch_grad",
                           "no_maximum_grad",
                           "largest_by_cells_grad",
                           "normalised_late_grad",
                           "renormalised_grad",
                           "one_head_grad",
                           "one_key_head_grad",
                           "rope_grad",
                           "scaled_queries_grad",
                           "scaled_twice_grad",
                           "sink_and_dropout_grad",
                           "sink_and_mask_grad",
                           "sink_below_a_maximum_grad",
                           "sink_below_a_maximum_by_hand_grad",
                           "sink_by_hand_grad",
                           "sink_column_grad",
                           "sink_column_in_groups_grad",
                           "sink_of_one_grad",
                           "sink_padded_grad",
                           "sink_beside_padded_values_grad",
                           "sink_before_zeros_in_groups_grad",
                           "soft_capped_grad",
                           "soft_capped_with_terms_grad",
                           "window_grad",
                           "window_of_fewer_keys_grad",
                           "rope_by_positions_of_entries_grad",
                           "rope_of_keys_by_entries_grad",
                           "rope_by_heads_grad",
                           "with_bias_of_key_heads_grad",
                           "bias_of_key_heads_in_bf16_grad",
                           "padding_is_added_grad",
                           "mask_is_data_and_dropout_grad",
                           "loss_of_output",
                           "loss_of_output_normalised_late",
                           "gradient_of_narrow_values_only",
                           "gradient_of_queries_only",
                           "gradient_of_a_part",
                           "gradient_of_a_part_of_few_keys_of_later_rows",
                           "gradient_of_values_only",
                           "loss_of_values_only",
                           "scan_of_values_only",
                           "keys_of_groups_summed_twice",
                           "clamped_indices_grad",
                           "doubled_indices_grad",
                           "halves_of_distances_grad",
                           "mask_of_many_grad",
                           "shifted_indices_grad",
                           "truncated_mask_grad",
                           "window_by_one_comparison_grad",
                           "window_of_unsigned_grad",
                           "one_row_multiplied_grad",
                           "one_row_multiplied_of_scaled_queries_grad",
                           "one_row_multiplied_in_groups_grad",
                           "rows_multiplied_grad",
                           "weighed_by_heads_grad",
                           "weights_times_heads_grad",
                           "weighed_by_heads_in_groups_grad",
                           "weighed_by_heads_of_groups_grad",
                           "weighed_by_rows_grad",
                           "weighed_by_keys_grad",
                           "weighed_by_keys_of_all_grad",
                           "weighed_by_a_number_grad",
                           "weighed_by_rows_and_keys_grad",
                           "weights_divided_by_heads_grad",
                           "dropped_and_weighed_by_heads_grad",
                           "weighed_by_heads_and_dropped_grad",
                           "weighed_by_keys_and_dropped_grad",
                           "weighed_by_heads_and_masked_twice_grad",
                           "weighed_by_heads_in_bf16_grad",
                           "keys_of_many_digits_grad"})
    all.push_back({name, 1, 1});
  for (const char* name : {"sum_of_output",
                           "sum_of_output.simplified",
                           "sum_of_output_by_column",
                           "sum_of_output_by_column.simplified",
                           "sum_of_output_by_head",
                           "sum_of_output_by_head.simplified",
                           "sum_of_output_by_quarter",
                           "sum_of_output_by_quarter.simplified",
                           "sum_of_output_by_row",
                           "sum_of_output_by_row.simplified",
                           "sum_of_output_of_one_row",
                           "sum_of_output_of_one_row.simplified",
                           "sum_of_output_scaled_by_a_parameter",
                           "sum_of_output_scaled_by_a_parameter.simplified",
                           "sum_of_output_times_a_number",
                           "sum_of_output_times_a_number.simplified",
                           "sum_of_output_with_bias",
                           "sum_of_output_with_bias.simplified",
                           "mean_of_output_dropped_out",
                           "mean_of_output_dropped_out.simplified",
                           "mean_of_output_dropped_out_alone",
                           "mean_of_output_dropped_out_alone.simplified",
                           "mean_of_output_in_groups",
                           "mean_of_output_in_groups.simplified",
                           "mean_of_output_normalised_late",
                           "mean_of_output_normalised_late.simplified"})
    all.push_back({name, 1, 1});
  all.push_back({"dots_merged", 2, 0});
  all.push_back({"branches", 2, 0});
  all.push_back({"branches_grad", 2, 2});
  all.push_back({"scan_of_branches_grad", 2, 1});
  all.push_back({"scan_called_twice", 2, 2});
  all.push_back({"scan_of_a_branch_called_twice", 2, 0});
  all.push_back({"scan_of_a_branch_called_twice_grad", 2, 2});
  all.push_back({"attention_or_means", 1, 0});
  for (const char* name :
       {"causal_or_full", "one_of_three_in_groups", "dropped_or_not", "differential",
        "differential_dropped", "differential_in_bf16", "differential_of_halves"})
    all.push_back({name, 2, 0});
  for (const char* name :
       {"differential_grad", "differential_grad.simplified", "differential_dropped_grad",
        "differential_in_bf16_grad", "differential_of_halves_grad"})
    all.push_back({name, 2, 2});
  for (const char* name : {"weights_of_half_the_heads_taken_off",
                           "weights_of_every_other_head_taken_off", "weights_of_pairs_of_heads"})
    all.push_back({name, 2, 0});
  for (const char* name :
       {"weights_of_half_the_heads_taken_off_grad",
        "weights_of_half_the_heads_taken_off_grad.simplified",
        "weights_of_every_other_head_taken_off_grad",
        "weights_of_every_other_head_taken_off_grad.simplified", "weights_of_pairs_of_heads_grad",
        "weights_of_pairs_of_heads_grad.simplified"})
    all.push_back({name, 2, 2});
  for (const char* name : {"shares_of_three", "weights_of_thirds_of_heads_that_share_keys"})
    all.push_back({name, 3, 0});
  for (const char* name :
       {"shares_of_three_grad", "weights_of_thirds_of_heads_that_share_keys_grad"})
    all.push_back({name, 3, 3});
  for (const char* name :
       {"attention_or_means_grad", "attention_or_means_grad.simplified", "scan_of_chosen_layers",
        "scan_of_chosen_layers.simplified", "chosen_scan_grad", "chosen_scan_grad.simplified"})
    all.push_back({name, 1, 1});
  for (const char* name :
       {"causal_or_full_grad", "causal_or_full_grad.simplified", "one_of_three_in_groups_grad",
        "one_of_three_in_groups_grad.simplified", "dropped_or_not_grad",
        "dropped_or_not_grad.simplified", "chosen_twice_grad", "chosen_twice_grad.simplified"})
    all.push_back({name, 2, 2});
  all.push_back({"layers_unrolled", 3, 3});
  all.push_back({"layers_everything_saveable", 2, 2});
  all.push_back({"layers_dots_saveable", 2, 2});
  all.push_back({"scan_dots_saveable", 2, 1});
  for (const char* name : {"scan_dots_saveable_with_biases", "scan_dots_saveable_rotated"})
    all.push_back({name, 2, 1});
  all.push_back({"bias_of_all_layers", 3, 0});
  all.push_back({"bias_of_all_layers_grad", 3, 3});
  for (const char* name :
       {"scan", "scan_dropped_out", "scan_of_scans", "scan_reversed", "scan_with_mask",
        "mapped_over_entries", "mapped_over_heads", "scan_weighed_by_heads", "scan_with_sinks",
        "scan_with_widened_bias", "scan_with_widened_slopes"})
    all.push_back({name, 1, 1});
  all.push_back({"scan_dropped_out_checkpoint", 2, 1});
  all.push_back({"scan_checkpoint", 2, 1});
  all.push_back({"scan_dropped_by_generator_checkpoint", 2, 1});
  all.push_back({"scan_with_sinks_checkpoint", 2, 1});
  for (const char* name :
       {"scaled_and_biased_by_trained_numbers_grad", "biased_then_scaled_by_trained_numbers_grad",
        "biases_of_heads_and_of_entries_grad", "biases_and_dropout_grad", "equal_axes_biases_grad"})
    all.push_back({name, 1, 2});
  all.push_back({"normalised_over_queries", 1, 1});  // as a gradient of values is
  for (const char* name :
       {"biases_of_heads_and_of_entries", "biases_and_dropout",
        "weights_of_rows_without_keys_dropped", "weights_of_filled_rows_dropped_and_weighed",
        "weights_of_chosen_rows", "weights_that_are_no_numbers_dropped",
        "weights_and_scores_made_numbers"})
    all.push_back({name, 1, 0});
  for (const char* name :
       {"weights_of_rows_without_keys_dropped_grad",
        "weights_of_filled_rows_dropped_and_weighed_grad", "weights_of_chosen_rows_grad",
        "weights_that_are_no_numbers_dropped_grad", "weights_and_scores_made_numbers_grad"})
    all.push_back({name, 1, 1});
  return all;
}

std::vector<Expected> left_alone() {
  std::vector<Expected> all;
  for (const char* name : {"shared_scores_and_bias",
                           "shared_scores_and_padding",
                           "trained_by_five_numbers_grad",
                           "shared_scores_and_slopes",
                           "shared_scores_and_dropout",
                           "heads_share_scores_but_biases",
                           "sum_no_less_than_two",
                           "sum_no_less_than_two_grad",
                           "sum_of_unshifted_exponentials_guarded",
                           "sum_of_unshifted_exponentials_guarded_grad",
                           "sum_of_shown_exponentials_guarded",
                           "sum_of_shown_exponentials_guarded_grad",
                           "ones_of_rows_without_sum",
                           "ones_of_rows_without_sum_grad",
                           "sum_guarded_by_another",
                           "sum_guarded_by_another_grad",
                           "probabilities_returned",
                           "values_of_parts_of_the_keys",
                           "weights_of_other_rows_a_half",
                           "weights_of_scores_divided_by_nothing_dropped",
                           "weights_that_are_no_numbers_a_half",
                           "weights_of_rows_by_their_scores",
                           "weights_of_heads_used_twice",
                           "differential_rounded_after",
                           "exponentials_of_both_kinds",
                           "exponentials_times_two_numbers",
                           "differential_returned",
                           "keys_repeated_within_a_head",
                           "scan_keeping_weights",
                           "second_derivative_through_a_loop",
                           "sum_of_output_clipped_backwards",
                           "sum_of_output_clipped_backwards.simplified",
                           "by_log_sum_exp_of_hidden_rows",
                           "not_normalised",
                           "rows_without_keys",
                           "entries_without_keys",
                           "summed_where_others_are_shown",
                           "relu_of_scores",
                           "capped_after_mask",
                           "sink_of_each_row",
                           "sink_of_each_row_grad",
                           "sink_returned",
                           "sink_not_dropped",
                           "sink_beside_values_of_its_own",
                           "sink_beside_zeros_of_a_key",
                           "distances_in_thirds",
                           "mask_below_zero",
                           "positions_in_bfloat16",
                           "positions_rounded_to_bfloat16",
                           "scores_in_eight_bits",
                           "weights_in_eight_bits",
                           "scores_as_integers",
                           "scores_of_few_digits",
                           "weights_divided_by_a_mask",
                           "probabilities_divided_by_a_mask",
                           "one_row_multiplied_by_gated_keys",
                           "one_row_of_largest_products",
                           "nearly_the_gradient",
                           "dropped_by_a_part",
                           "dropped_by_a_part_grad",
                           "dropped_to_a_number",
                           "dropped_to_a_number_grad",
                           "fills_of_rows",
                           "shown_with_two_numbers"})
    all.push_back({name, 0, 0});
  return all;
}

const auto kName = [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Fused, Form, ::testing::ValuesIn(fused()), kName);
INSTANTIATE_TEST_SUITE_P(LeftAlone, Form, ::testing::ValuesIn(left_alone()), kName);

}  // namespace
}  // namespace heddle::testing
