"""A program as Python text, which is both what runs and what is printed."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

SIZES = {"a": "A", "b": "B", "g": "G", "r": "R", "h": "H", "q": "Q", "k": "K", "d": "D", "v": "V"}


class Draw:
    """Arrays from a seed: draw("q").normal(B, Q) is the same whatever else is drawn."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, name):
        drawn = Draw(self.seed)
        drawn.random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        return drawn

    def normal(self, *shape, dtype=np.float32, scale=1.0):
        return (self.random.standard_normal(shape) * scale).astype(dtype)

    def integers(self, low, high, *shape, dtype=np.int32):
        return self.random.integers(low, high, shape).astype(dtype)

    def chance(self, probability, *shape, hidden=""):
        """True as often as said; `hidden`: none of the "first" entries of the leading dim, or of the "last" of the last
        dim but one."""
        x = self.random.random(shape) < probability
        if "first" in hidden:
            x[0] = False
        if "last" in hidden and len(shape) > 1:
            x[..., -1, :] = False
        return x

    def lengths(self, n, most, dtype=np.int32):
        """Of which one is 0, one is 1 and one is all, as far as there are so many."""
        kinds = [0, most, 1, int(self.random.integers(0, most + 1))]
        return self.random.permutation([kinds[i % 4] for i in range(n)]).astype(dtype)

    def segments(self, n, length, dtype=np.int32):
        return np.sort(self.random.integers(0, 3, (n, length)), -1).astype(dtype)

    def tokens(self, n, length, side):
        """Token numbers; 0 is padding, before or after the others."""
        tokens = self.random.integers(1, 9, (n, length))
        padding = self.lengths(n, length)[:, None]
        at = np.arange(length)[None]
        return np.where(at < padding if side == "left" else at >= length - padding, 0, tokens).astype(np.int32)

    def positions(self, n, length, dtype=np.int32):
        """Counted from a place that differs for each."""
        return (np.arange(length)[None] + self.random.integers(-length // 2, length, (n, 1))).clip(0).astype(dtype)

    def key(self, words=2):
        return self.random.integers(0, 2**32, words).astype(np.uint32)


class Text:
    """What `attend` is made of, line by line, and the arguments and constants that it needs."""

    def __init__(self, choices, sizes):
        self.choices, self.sizes = choices, sizes
        self.arguments, self.letters, self.moving, self.constants, self.lines = {}, {}, [], {}, []
        self._names = set()

    def name(self, stem):
        name, i = stem, 1
        while name in self._names:
            i += 1
            name = f"{stem}{i}"
        self._names.add(name)
        return name

    def argument(self, stem, letters, draw, moving=False):
        """A new argument whose axes are `letters` ("" if they have no meaning), drawn by draw(...); `moving` if programs
        may be differentiated by it."""
        name = self.name(stem)
        self.arguments[name], self.letters[name] = f'draw("{name}").{draw}', letters
        if moving:
            self.moving.append(name)
        return name

    def constant(self, stem, draw):
        name = self.name(stem.upper())
        self.constants[name] = f'draw("{name}").{draw}'
        return name

    def let(self, name, expression):
        if name != expression:
            self.lines.append(f"{name} = {expression}")
        return name

    def new(self, stem, expression):
        return self.let(self.name(stem), expression)


def shape(letters):
    return "(" + ", ".join(SIZES[x] for x in letters) + ("," if len(letters) == 1 else "") + ")"


def dims(letters):
    return ", ".join(SIZES[x] for x in letters)


def drawn(kind, letters, *options):
    """The text of an array of these axes, to be drawn."""
    return f"{kind}({', '.join([*(SIZES[x] for x in letters), *options])})"


def aligned(x, letters, target):
    """The text of x, whose axes are `letters`, made to broadcast against axes `target`."""
    if not letters:
        return x
    order = [c for c in target if c in letters]
    assert set(letters) <= set(target), (letters, target)
    if list(letters) != order:
        x = f"jnp.transpose({x}, {tuple(letters.index(c) for c in order)})"
    kept = target[target.index(order[0]):]
    index = [":" if c in letters else "None" for c in kept]
    return x if "None" not in index else f"{x}[{', '.join(index)}]"


def transposed(x, letters, target):
    return x if letters == target else f"jnp.transpose({x}, {tuple(letters.index(c) for c in target)})"


class Written:
    """A text that runs: `program`, a function of fuse that gives a function of `arguments`."""

    def __init__(self, source, seed):
        self.source = source
        namespace = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "draw": Draw(seed), "Mesh": Mesh, "P": PartitionSpec}
        exec(compile(source, f"<program {seed}>", "exec"), namespace)
        self.program, self.arguments = namespace["program"], list(namespace["inputs"]())
