"""A random JAX program with attention, from a seed."""

import library
import masks
import operands
import scores
import structures
import weights
from choices import Choices
from text import SIZES, Text

HELPERS = '''
def weights_of(shape):
    return jnp.cos(1 + jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32) * 1.7).reshape(shape)


def mixed(o, x):
    """An array of x's size made of o's."""
    return jnp.resize(o.astype(jnp.float32).ravel(), x.size).reshape(x.shape).astype(x.dtype)
'''


def generate(seed, fixed=None):
    """The text of a seed's program, and its choices; `fixed` makes some of them otherwise, by name."""
    c = Choices(seed, fixed)
    text = Text(c, operands.draw_sizes(c))
    if c.any("by the library", *[False] * 24, True):
        library.attend(text)
        result, after = "o", []
    else:
        result, after = _spelled_out(text)
    name = "scores" if after else "attend"
    attend = [f"def {name}({', '.join(text.arguments)}):", *("    " + line for line in text.lines), f"    return {result}", "", ""]
    lines, whole, fused_inside = structures.program_lines(text, several="," in result)
    source = [f"# seed {seed}: " + ", ".join(f"{k} = {v}" for k, v in c.made.items()),
              ", ".join(SIZES.values()) + " = " + ", ".join(str(text.sizes[x]) for x in SIZES),
              *(f"{k} = {v}" for k, v in text.constants.items()), HELPERS, "", *attend, *after, "def program(fuse):",
              *("    " + line for line in lines), f"    return {whole if fused_inside else f'fuse({whole})'}", "", "", "def inputs():", "    return [",
              *(f"        {v}," for v in text.arguments.values()), "    ]"]
    return "\n".join(source) + "\n", c


def _spelled_out(text):
    """Writes attention step by step; gives what the function returns, and the lines that make it one with a backward by
    hand."""
    c = text.choices
    letters, dtype, scale = operands.draw_operands(text)
    axes = operands.draw_scores(text, letters, scale)
    shown = masks.draw_masks(text, axes)
    applied = None, "none"

    def hide():
        nonlocal applied
        applied = masks.apply_masks(text, axes, masks.combined(text, axes, shown))

    steps = [lambda: scores.soft_cap(text)] if c.any("capped", *[False] * 11, True) else []
    steps += [lambda: scores.bias(text, axes, letters["q"])] * c.any("biases", *[0] * 15, *[1] * 8, 2)
    steps += [lambda: scores.slopes(text, axes)] if c.any("alibi", *[False] * 8, True) else []
    if len(steps) > 1 and c.yes("capped last", 0.4):
        steps.append(steps.pop(0))
    for step in [hide, *steps] if c.yes("masks before biases", 0.15) else [*steps, hide]:
        step()
    by_hand = applied[1] != "where=" and c.any("flash", *[False] * 19, True) and weights.flash(axes, letters)
    if by_hand:
        return "s, v", by_hand
    returned = weights.draw_weights(text, axes, *applied, letters, dtype)
    if c.yes("output masked", 0.03):
        text.let("o", "jnp.where(o > 0, o, 0.0)")
    return returned, []
