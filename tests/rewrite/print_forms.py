"""Prints the ways in which JAX programs write attention, one small HLO module each.

    python tests/rewrite/print_forms.py tests/data/hlo/forms           # all of them
    python tests/rewrite/print_forms.py tests/data/hlo/forms window    # or some

The programs are in forms/, a file for each thing that they differ in.
"""

import sys
from pathlib import Path

import jax

from forms import (backwards, broadcasts, dropout, heads, integers, layers, lookalikes, masks, rope, rows,  # noqa: F401
                   scores, sinks)
from forms.form import FORMS


def main(folder, *names):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or FORMS:
        f, shapes = FORMS[name]
        f.__name__ = name
        computation = jax.jit(f).lower(*shapes).compiler_ir("hlo")
        text = computation.as_hlo_text(print_large_constants=True)
        (folder / f"{name}.hlo").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
