"""Prints the ways in which JAX programs write attention, one small HLO module each.

    python tests/rewrite/print_forms.py tests/data/hlo/forms           # all of them
    python tests/rewrite/print_forms.py tests/data/hlo/forms window    # or some

The programs are in forms/, a file for each thing that they differ in. Those of losses.py and of SIMPLIFIED, and the gradients
of equal_axes.py, are printed a second time, as NAME.simplified.hlo: as XLA has simplified them before it assigns layouts.
"""

import sys
import tempfile
from pathlib import Path

import jax
import jaxlib._hlo as _hlo

from forms import (backwards, broadcasts, conditionals, dropout, equal_axes, factors, guards, heads, integers, layers,  # noqa: F401
                   lookalikes, losses, masks, rope, rows, scores, sinks, sums_of_weights)
from forms.form import FORMS


SIMPLIFIED = {"dropped_by_keys_of_keys_grad", "attention_or_means_grad", "causal_or_full_grad", "one_of_three_in_groups_grad",
              "dropped_or_not_grad", "differential_grad", "exponentials_masked_grad", "scan_of_chosen_layers", "chosen_scan_grad", "chosen_twice_grad",
              "weights_of_half_the_heads_taken_off_grad", "weights_of_every_other_head_taken_off_grad",
              "weights_of_pairs_of_heads_grad", "sum_guarded_by_one_grad", "sum_guarded_by_a_bound_grad",
              "sum_guarded_by_an_epsilon_late_grad", "sum_guarded_of_masked_exponentials_grad", "sum_guarded_in_groups_grad"}


def simplified(lowered):
    """What XLA prints before it assigns layouts."""
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_pass_re": "simplification|cse",
                                          "xla_dump_large_constants": True})
        last = sorted(Path(folder).glob("*.HLO_passes_through_layout_assignment.after_cse.*.txt"))[-1]
        module = _hlo.hlo_module_from_text(last.read_text())
    options = _hlo.HloPrintOptions()
    options.print_large_constants, options.print_metadata = True, False
    return module.to_string(options)


def main(folder, *names):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or FORMS:
        f, shapes = FORMS[name]
        f.__name__ = name
        lowered = jax.jit(f).lower(*shapes)
        text = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
        (folder / f"{name}.hlo").write_text(text)
        is_equal = name.startswith("equal_axes_") and name.endswith("_grad")
        if f.__module__ == losses.__name__ or name in SIMPLIFIED or is_equal:
            (folder / f"{name}.simplified.hlo").write_text(simplified(lowered))


if __name__ == "__main__":
    main(*sys.argv[1:])
