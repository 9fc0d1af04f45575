"""RoPE as a graph, forward and backward, and what it demands of its arguments, of whatever arrays these are."""

import math
import operator
from collections.abc import Mapping
from typing import NamedTuple

from heddle._graph import Graph
from heddle.arrays import _calls
from heddle.arrays._attention_graph import LAYOUTS
from heddle.arrays._calls import Kind, bound, dtype_among

OP = "rope"
FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i32", "i64")
PAIRINGS = ("halves", "interleaved")


class Config(NamedTuple):
    """All of a call that is no array."""

    rope_dim: int
    leading: bool  # the first rope_dim columns, else the last
    output_scale: float
    pairing: str
    layout: str
    length: int
    batch: int  # 1 where x has none


def check_base(base: float) -> None:
    """Raises ValueError unless the angles of every position of 64 bits are numbers of f32: an infinite one has no cosine."""
    if base < 1e-18:
        raise ValueError(f"{OP}: base is {base}, expected a number of at least 1e-18.")


def check(kinds: Mapping[str, Kind], *, base: object, rope_dim: object, leading: object, output_scale: object,
          pairing: object, layout: object) -> tuple[Config, float]:
    """The call's choices, and base. Raises TypeError or ValueError in a sentence."""
    _calls.one_of(OP, "layout", layout, LAYOUTS)
    _calls.one_of(OP, "pairing", pairing, PAIRINGS)
    x = kinds["x"]
    dtype_among(OP, "x", x, FLOATS)
    if len(x.dims) not in (3, 4):
        raise ValueError(f"{OP}: x has shape {x.dims}, expected {layout} or {layout[1:]}.")
    batch, _, length, h = with_heads_first(x, layout).dims
    if h % 2 != 0 or h == 0:
        raise ValueError(f"{OP}: x has head dim {h}, expected an even one.")
    rope_dim = _rope_dim(rope_dim, h)
    leading = _calls.flag(OP, "leading", leading)
    numbers = {"base": base, "output_scale": output_scale}
    for name, given in numbers.items():
        numbers[name] = _calls.number(OP, name, given)
        if not math.isfinite(numbers[name]):
            raise ValueError(f"{OP}: {name} is {given}, expected a finite number.")
    check_base(numbers["base"])
    if "positions" in kinds:
        positions = kinds["positions"]
        dtype_among(OP, "positions", positions, INTEGERS)
        if positions.dims not in ((length,), (batch, length)):
            raise ValueError(f"{OP}: positions has shape {positions.dims}, expected ({length},) or ({batch}, {length}).")
    if "angles" in kinds:
        angles = kinds["angles"]
        dtype_among(OP, "angles", angles, ("f32",))
        if len(angles.dims) != 2 or angles.dims[1] != rope_dim // 2:
            raise ValueError(f"{OP}: angles has shape {angles.dims}, expected [P, {rope_dim // 2}], half of rope_dim.")
        if angles.dims[0] == 0 and 0 not in x.dims:
            raise ValueError(f"{OP}: angles has no rows, expected one for every position.")
        if "positions" not in kinds and angles.dims[0] < length:
            raise ValueError(f"{OP}: angles has {angles.dims[0]} rows, expected at least {length}, the length of x.")
    return Config(rope_dim, leading, numbers["output_scale"], pairing, layout, length, batch), numbers["base"]


def graph(config: Config, backward: bool, x: Kind, freqs: Kind, positions: Kind | None) -> Graph:
    """Operands x, freqs [P, rope_dim], each angle twice, and perhaps positions, rows of freqs; the result is dense."""
    made = Graph(OP, intermediate="f32")
    y = with_heads_first(Kind.dense(x.dtype, x.dims), config.layout)
    kinds = {"x": with_heads_first(x, config.layout), "freqs": freqs.permuted(0, None, None, 1)}
    if positions is not None:
        kinds["positions"] = positions.permuted(*((0, None, 1, None) if len(positions.dims) == 2 else (None, None, 0, None)))
    tensors = bound(made, kinds | {"y": y})
    made.node("rope_backward" if backward else "rope", **tensors, rope_dim=config.rope_dim, leading=config.leading,
              output_scale=config.output_scale, pairing=config.pairing)
    return made


def with_heads_first(kind: Kind, layout: str) -> Kind:
    """An array of rows as [B, heads, length, dim], B of 1 where it has none."""
    axes = (0, 1, 2, 3) if layout == "BNTH" else (0, 2, 1, 3)
    return kind.permuted(*(axes if len(kind.dims) == 4 else (None, *(axis - 1 for axis in axes[1:]))))


def _rope_dim(given, h):
    if given is None:
        return h
    try:
        rope_dim = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        rope_dim = None
    if rope_dim is None or rope_dim % 2 != 0 or not 0 < rope_dim <= h:
        raise ValueError(f"{OP}: rope_dim is {given}, expected an even number from 2 to the head dim {h}.")
    return rope_dim
