"""Prints the training step of examples/gpt/model.py as HLO text, as JAX hands it to XLA (not optimised).

    python examples/gpt/print_hlo.py --sequence 512 > gpt.hlo
    python examples/gpt/print_hlo.py --sequence 64 --dtype bfloat16 --checkpoint -o gpt.hlo
"""

import argparse
import sys
from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp

import model


def hlo_text(config):
    """The HLO text of one training step; constants are printed whole, so the text is the program."""
    params = jax.eval_shape(partial(model.init, config), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((config.batch, config.sequence + 1), jnp.int32)
    step = jax.jit(partial(model.train_step, config))
    computation = step.lower(params, tokens).compiler_ir("hlo")
    return computation.as_hlo_text(print_large_constants=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(model.Config):
        name = "--" + field.name.replace("_", "-")
        if field.type in (bool, "bool"):
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("-o", "--output", help="file to write (default: standard output)")
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    text = hlo_text(model.Config(**arguments))
    if output:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
