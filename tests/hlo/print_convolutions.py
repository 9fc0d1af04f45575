"""Prints convolutions with what XLA makes of them: modules that give true where the interpreter agrees.

    python tests/hlo/print_convolutions.py tests/data/hlo/convolutions
"""

import random
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def literal(array):
    """An array of whole numbers as HLO's text has it."""
    if array.ndim == 0:
        return str(int(array))
    return "{" + ", ".join(literal(part) for part in array) + "}"


def drawn(seed):
    """A convolution's arguments: dimensions in any order, groups of features or of batch entries."""
    r = random.Random(seed)
    rank = r.choice([1, 1, 2, 2, 3])
    groups = r.choice([1, 1, 2, 3])
    of_features = r.random() < 0.5
    inputs, outputs, batch = r.randint(1, 3), groups * r.randint(1, 3), r.randint(1, 3)
    features = inputs * (groups if of_features else 1)
    batch *= 1 if of_features else groups
    window = [r.randint(1, 3) for _ in range(rank)]
    sizes = [r.randint(2, 5) for _ in range(rank)]

    def order(letters):
        labels = list(letters) + [str(n) for n in range(rank)]
        r.shuffle(labels)
        return labels

    lhs, rhs, out = order("bf"), order("io"), order("bf")
    size_of = {"b": batch, "f": features, **{str(n): sizes[n] for n in range(rank)}}
    kernel_size_of = {"i": inputs, "o": outputs, **{str(n): window[n] for n in range(rank)}}
    values = np.random.default_rng(seed)
    sizes_of = [size_of[c] for c in lhs], [kernel_size_of[c] for c in rhs]
    arrays = [values.integers(-4, 5, sizes) for sizes in sizes_of]

    def places(labels, first, second):
        return (labels.index(first), labels.index(second), *(labels.index(str(n)) for n in range(rank)))

    return arrays, {
        "window_strides": [r.randint(1, 3) for _ in range(rank)],
        "padding": [(r.randint(-1, 2), r.randint(-1, 2)) for _ in range(rank)],
        "lhs_dilation": [r.choice([1, 1, 2, 3]) for _ in range(rank)],
        "rhs_dilation": [r.choice([1, 1, 2]) for _ in range(rank)],
        "dimension_numbers": lax.ConvDimensionNumbers(
            places(lhs, "b", "f"), places(rhs, "o", "i"), places(out, "b", "f")),
        "feature_group_count": groups if of_features else 1,
        "batch_group_count": 1 if of_features else groups,
    }


def module(seed):
    """The text of one; None if its result is empty, or XLA has another operation for it."""
    arrays, arguments = drawn(seed)
    lhs, rhs = (jnp.asarray(a, jnp.float32) for a in arrays)
    convolve = jax.jit(lambda a, b: lax.conv_general_dilated(a, b, **arguments))
    result = np.asarray(convolve(lhs, rhs))
    line = next((x for x in convolve.lower(lhs, rhs).as_text("hlo").splitlines() if " convolution(" in x), None)
    if line is None or result.size == 0:
        return None
    attributes = re.sub(r", metadata=\{.*?\}", "", line[line.index("), ") + 3:])
    shapes = ["f32[" + ",".join(map(str, a.shape)) + "]" for a in (lhs, rhs, result)]
    dimensions = ",".join(map(str, range(result.ndim)))
    return f"""HloModule convolution_{seed}

both {{
  a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT c = pred[] and(a, b)
}}

ENTRY main {{
  lhs = {shapes[0]} constant({literal(arrays[0])})
  rhs = {shapes[1]} constant({literal(arrays[1])})
  result = {shapes[2]} convolution(lhs, rhs), {attributes}
  expected = {shapes[2]} constant({literal(result)})
  equal = pred[{",".join(map(str, result.shape))}] compare(result, expected), direction=EQ
  true = pred[] constant(true)
  ROOT all = pred[] reduce(equal, true), dimensions={{{dimensions}}}, to_apply=both
}}
"""


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = seed = 0
    while written < 24:
        seed += 1
        text = module(seed)
        if text is not None:
            (folder / f"{seed:02}.hlo").write_text(text)
            written += 1


if __name__ == "__main__":
    main(sys.argv[1])
