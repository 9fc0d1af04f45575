"""Nodes as programs make them: an op, its fields by the names of docs/graph-text-form.md, and what is wrong with it."""

from dataclasses import dataclass, field

from heddle.cudnn._tensor import Tensor


@dataclass(eq=False)
class Pointwise:
    """A pointwise op: its mode as the text form calls it."""

    mode: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    axis: int = 0
    name: str = ""
    numbers: dict[str, float] = field(default_factory=dict)  # an activation's, as the text form calls them


@dataclass(eq=False)
class ScoreExpression:
    """What a score_mod made of the score it was given."""

    score: Tensor
    result: Tensor
    ops: list[Pointwise]

    def tensors(self):
        """What the expression reads and makes."""
        for op in self.ops:
            yield from op.inputs
            yield op.output


@dataclass(eq=False)
class Node:
    op: str
    name: str
    fields: dict[str, object]
    # Of an op that Heddle's graphs do not have: why it is declined.
    declined: str | None = None

    def tensors(self):
        """Those it binds, offsets first; those inside score expressions come with `inner`."""
        yield from _with_offsets(_tensors_of(self.fields))

    def expressions(self):
        return [value for value in self.fields.values() if isinstance(value, ScoreExpression)]


def _tensors_of(fields):
    for value in fields.values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors_of(value)


def _with_offsets(tensors):
    for tensor in tensors:
        if tensor._ragged_offset is not None:
            yield tensor._ragged_offset
        yield tensor
