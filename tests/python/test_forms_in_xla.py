"""Recorded attention programs, original and fused, run by XLA on the CPU: Heddle's engine under masks that data decides,
dropout drawn from the program's key, sinks, and layers in a scan."""

import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import ffi
from heddle.jax.xla_module import XlaModule

FORMS = ["mask_of_keys_grad", "mask_of_either_grad", "mask_in_groups_grad", "lengths_of_both_grad", "lengths_and_causal_grad",
         "segments_grad", "dropped_transposed_grad", "scan_dropped_out", "scan_with_mask",
         "dropped_by_generator_grad", "scan_dropped_by_generator_checkpoint", "sink_column_grad",
         "sink_column_in_groups_grad", "sink_by_hand_grad", "sink_below_a_maximum_grad",
         "sink_below_a_maximum_by_hand_grad", "sink_of_one_grad", "sink_and_mask_grad",
         "scan_with_sinks", "scan_with_sinks_checkpoint", "alibi_grad", "alibi_of_constants_grad", "alibi_and_bias_grad",
         "alibi_trained_grad", "window_by_one_comparison_grad", "window_of_unsigned_grad", "doubled_indices_grad",
         "shifted_indices_grad", "clamped_indices_grad", "halves_of_distances_grad", "truncated_mask_grad",
         "mask_of_many_grad", "mask_of_softmax_grad", "causal_by_softmax_grad", "branches_grad", "scan_of_branches",
         "layers_dots_saveable", "scan_dots_saveable", "scan_everything_saveable",
         "scan_dots_saveable_with_biases", "scan_dots_saveable_rotated",
         "rope_of_first_halves", "rope_of_first_halves_grad", "rope_of_first_neighbours_grad", "rope_of_last_columns_grad",
         "fill_added_within_reach_grad", "fill_added_within_reach_in_bf16_grad", "fills_added_within_reach_grad",
         "fill_added_beside_a_bias_grad", "biases_of_heads_and_of_entries_grad", "biases_and_dropout_grad",
         "biased_then_scaled_by_trained_numbers_grad", "gradient_of_values_only", "loss_of_values_only",
         "gradient_of_narrow_values_only", "scan_of_values_only", "dropped_in_bf16", "dropped_in_bf16_grad",
         "dropped_by_keys_of_keys_grad", "drawn_to_be_dropped_grad", "dropped_by_a_draw_of_the_rate_grad",
         "given_to_be_dropped_and_masked_twice_grad",
         "keys_of_content_and_of_positions", "keys_of_content_and_of_positions_grad",
         "vector_of_each_pair_of_positions_grad", "products_of_two_pairs_grad",
         "weighed_by_heads_grad", "weighed_by_heads_in_groups_grad", "weighed_by_heads_of_groups_grad", "weighed_by_rows_grad",
         "weighed_by_keys_grad", "weighed_by_keys_of_all_grad", "weighed_by_a_number_grad", "weighed_by_rows_and_keys_grad",
         "weights_divided_by_heads_grad", "dropped_and_weighed_by_heads_grad", "weighed_by_heads_and_dropped_grad",
         "queries_of_all_entries_grad", "one_query_of_all_entries_grad",
         "values_of_all_heads_and_entries_grad", "keys_alone_of_each_entry_grad", "weighed_by_keys_and_dropped_grad",
         "weighed_by_heads_and_masked_twice_grad", "weighed_by_heads_in_bf16_grad",
         "scan_weighed_by_heads", "mapped_over_entries", "mapped_over_heads"]


def argument(shape, dtype, number):
    """Random; the first half of a mask shows nothing, and the first of some lengths is 0."""
    random = np.random.default_rng(number)
    if dtype == np.bool_ and len(shape) > 1:
        mask = random.random(shape) < 0.7
        mask.reshape(-1)[: mask.size // 2] = False
        return mask
    if dtype == np.bool_:
        return random.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        value = random.integers(0, 2**31 - 1, shape).astype(dtype)
        if value.size == shape[0] == 2 and dtype == np.int32:
            value[0] = 0
        return value
    return (0.2 * random.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("form", FORMS)
def test_fused_program_gives_what_the_original_gives(form, heddle, root, tmp_path):
    ffi.register()
    original = root / "tests" / "data" / "hlo" / "forms" / f"{form}.hlo"
    fused = tmp_path / "fused.hlo"
    run = heddle("fuse", original, "-o", fused)
    assert run.returncode == 0, run.stderr
    modules = [XlaModule(path.read_text(encoding="utf-8")) for path in (original, fused)]
    assert "custom_call_target=\"heddle\"" in fused.read_text(encoding="utf-8")
    arguments = [jnp.asarray(argument(shape, dtype, i)) for i, (shape, dtype) in enumerate(modules[0].parameters)]
    expected, found = (module(*arguments) for module in modules)
    for e, f in zip(expected, found, strict=True):
        allowed = 3e-5 if e.dtype == np.float32 else 2e-2  # bf16: the original adds up in it
        e, f = np.asarray(e, np.float64), np.asarray(f, np.float64)
        meant = ~np.isnan(e)  # rows that see no key where the fill is -inf
        assert meant.mean() > 0.4
        assert np.linalg.norm((f - e)[meant]) <= allowed * np.linalg.norm(e[meant])
