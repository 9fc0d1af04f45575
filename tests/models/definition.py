"""What a program of a model library is: how to make it, how many attentions it has, and how many of them are fused."""

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = sorted(path.stem for path in (Path(__file__).parent / "libraries").glob("*.py"))


@dataclass(frozen=True)
class Program:
    """`make` gives a function and its arguments, trees of arrays. Attentions are counted in the model's code: a loop's
    body once, a forward that a checkpoint runs again twice."""

    make: Callable
    dtype: str
    forwards: int
    backwards: int
    left: tuple  # of forwards and backwards, those that are known to be left alone,
    because: str  # and why

    @property
    def name(self):
        return self.make.__name__

    @property
    def kind(self):
        return "grad" if self.backwards else "fwd"

    def expected(self):
        return self.forwards - self.left[0], self.backwards - self.left[1]


def program(dtype, forwards, backwards=0, left=(0, 0), because=""):
    assert (left == (0, 0)) == (not because), "what is left alone has a reason"
    return lambda make: Program(make, dtype, forwards, backwards, left, because)


def programs(library):
    """Name -> Program of a file in libraries/."""
    module = importlib.import_module(f"libraries.{library}")
    return {x.name: x for x in vars(module).values() if isinstance(x, Program)}


def made_flat(library, name):
    """(program, arguments) for tests/programs/trial.py: a function of `fuse`, and a flat list of arrays."""
    import jax

    random.seed(0)  # by which Keras seeds what is not seeded
    function, arguments = programs(library)[name].make()
    leaves, tree = jax.tree.flatten(arguments)
    return lambda fuse: fuse(lambda *values: jax.tree.leaves(function(*jax.tree.unflatten(tree, values)))), leaves
