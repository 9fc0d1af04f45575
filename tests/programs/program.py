"""A random JAX program with attention, from a seed."""

import masks
import operands
import scores
import structures
import weights
from choices import Choices
from text import SIZES, Text, Written

HELPERS = """
def weights_of(shape):
    return jnp.cos(1 + jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32) * 1.7).reshape(shape)


def mixed(o, x):
    \"\"\"An array of x's size made of o's.\"\"\"
    n = x.size
    flat = jnp.resize(o.astype(jnp.float32).ravel(), n)
    return flat.reshape(x.shape).astype(x.dtype)
"""


def generate(seed, fixed=None):
    """The Written program of a seed, and the choices that are not the plainest; `fixed` changes choices by name."""
    c = Choices(seed, fixed)
    text = Text(c, operands.draw_sizes(c))
    letters, dtype, scale, heads = operands.draw_operands(text)
    axes = operands.draw_scores(text, letters, scale)
    shown = masks.draw_masks(text, axes)
    steps = []
    if c.any("capped", *[False] * 11, True):
        steps.append(scores.soft_cap)
    for n in range(c.any("biases", *[0] * 15, *[1] * 8, 2)):
        steps.append(lambda text, axes: scores.bias(text, axes, letters["q"]))
    if c.any("alibi", *[False] * 8, True):
        steps.append(scores.slopes)
    found = None, "none"

    def hide(text, axes):
        nonlocal found
        found = masks.apply_masks(text, axes, masks.combined(text, axes, shown))

    late = c.yes("masks before biases", 0.15)
    steps = [hide, *steps] if late else [*steps, hide]
    for step in steps:
        step(text, axes)
    by_hand = weights.flash(text, axes, letters) if found[1] != "where=" and c.any("flash", *[False] * 19, True) else None
    o, extra = (by_hand[0], False) if by_hand else weights.draw_weights(text, axes, *found, letters, dtype)
    around = c("lookalike around", "", "masked output", "sum of outputs", often=0.04)
    if around == "masked output" and not by_hand:
        text.let("o", "jnp.where(o > 0, o, 0.0)")
    attend_arguments = ", ".join(text.arguments)
    lines, name = structures.program_lines(text, o, extra)
    fused = "whole" if c.made.get("fused", "whole") == "whole" else None
    if c.made.get("fused") == "gradient of fused" and "fused_inside" not in "".join(lines):
        fused = "whole"
    source = [f"# seed {seed}: " + ", ".join(f"{k} = {v}" for k, v in c.made.items()),
              ", ".join(SIZES.values()) + " = " + ", ".join(str(text.sizes[x]) for x in SIZES)]
    source += [f"{k} = {v}" for k, v in text.constants.items()]
    result = "s, v" if by_hand else "o, extra" if extra else "o"
    source += [HELPERS, "", f"def {'scores' if by_hand else 'attend'}({attend_arguments}):", *("    " + line for line in text.lines),
               f"    return {result}", "", "", *(by_hand[1] if by_hand else ()), "def program(fuse):",
               *("    " + line for line in lines), f"    return {'fuse(' + name + ')' if fused else name}", "", "",
               "def inputs():", "    return [", *(f"        {v}," for v in text.arguments.values()), "    ]"]
    return "\n".join(source) + "\n", c


def written(seed, fixed=None):
    source, choices = generate(seed, fixed)
    return Written(source, seed), choices
