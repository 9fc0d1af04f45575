"""Attention as a graph, forward and backward, and what it demands of its arguments, of whatever arrays these are."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from heddle._graph import Expression, Graph, Tensor
from heddle.arrays import _calls
from heddle.arrays._calls import Kind, Ready, bound, dtype_among

OP = "attention"
FLOATS = ("f32", "f16", "bf16")
WIDE_FLOATS = ("f64", *FLOATS)  # of q; and of what is added to its scores where it is f64
INTEGERS = ("i32", "i64")
LAYOUTS = ("BTNH", "BNTH")
SEGMENTS = ("q_segments", "kv_segments")
_MOST_ID = 2**24
DIFFERENTIABLE = ("q", "k", "v", "bias", "sink")
# Of which operands a graph takes any strides; lengths are lists to a GPU's kernels.
LAID = dict.fromkeys(("bias", "mask", "sink", "q_segments", "kv_segments"), "anyhow") | dict.fromkeys(
    ("q_lengths", "kv_lengths"), "densely")
# What a graph takes no arrays of, and what these are converted to.
READ_AS = {"sink": {"f16": "f32", "bf16": "f32"}, **{name: {"i64": "i32"} for name in (
    "q_lengths", "kv_lengths", "q_segments", "kv_segments")}}
# What a graph calls the statistics of rows.
STATISTICS = {"lse": "stats", "max": "max", "sum_exp": "sum_exp", "d_lse": "d_stats"}


class Config(NamedTuple):
    """All of a call that is no array."""

    scale: float
    soft_cap: float | None = None
    left: int | None = None
    right: int | None = None
    bottom_right: bool = False
    dropout: float = 0.0
    deterministic: bool = False


class Extents(NamedTuple):
    """B, N, T, S, and D of the result."""

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int


def statistics(dtype: str, of_bias: bool) -> tuple[str, ...]:
    """What the forward leaves of a row for the backward: its maximum and sum apart, or their log-sum-exp alone.

    One f32 holds nothing of the sum beside a maximum of 1e9, as additive masks make it, and four digits beside 1e3; scores
    of 16-bit products alone are no more exact than that.
    """
    return ("max", "sum_exp") if dtype in ("f64", "f32") or of_bias else ("lse",)


def at_least_f32(dtype: str) -> str:
    """The type of statistics, and of sums of gradients, of a call on q of this type: f64 beside f64."""
    return "f64" if dtype == "f64" else "f32"


class Call(NamedTuple):
    """What calls with arrays of the same kinds and the same options share.

    Its plan takes the caller's arrays; then lengths of the whole q or k, or of both, int32 [B], that the call has to make;
    then seed and offset if there is dropout; then results.
    """

    ready: Ready | None  # None: there are no queries or no keys, and O is 0
    results: dict[str, Kind]  # of the caller's dims
    full_lengths: tuple[int, ...]
    batch: int


def forward_call(device: str, kinds: Mapping[str, Kind], config: Config, layout: str, wanted: tuple[str, ...]) -> Call:
    """kinds: the caller's arrays, with seed and offset last where there is dropout. wanted: statistics beside O.

    Raises TypeError, ValueError, or Error where no engine runs it.
    """
    operands, extents, full_lengths = _operands(kinds, config, layout)
    b, n, t, s, d = extents
    batch = (b,) if len(kinds["q"].dims) == 4 else ()
    results = {"o": Kind.dense(kinds["q"].dtype, (*batch, *((t, n) if layout == "BTNH" else (n, t)), d))}
    results |= {name: Kind.dense(at_least_f32(kinds["q"].dtype), (*batch, n, t)) for name in wanted}
    ready = None
    if 0 not in (b, n, t, s):
        written = {name: _as_operand(name, kind, layout) for name, kind in results.items()}
        ready = Ready(forward(config, operands, written), device, len(operands) + len(written))
    return Call(ready, results, full_lengths, b)


def backward_call(device: str, kinds: Mapping[str, Kind], config: Config, layout: str, wanted: tuple[str, ...]) -> Call:
    """kinds: the forward's, then "o", "d_o", the forward's statistics, and perhaps "d_lse". wanted: of DIFFERENTIABLE.

    Gradients of bias and sink are f32, or f64 as these are. Raises as `forward_call` does.
    """
    of_forward = {name: kind for name, kind in kinds.items() if name not in ("o", "d_o", *STATISTICS)}
    operands, extents, full_lengths = _operands(of_forward, config, layout)
    operands |= {name: _as_operand(name, kind, layout) for name, kind in kinds.items() if name not in operands}
    types = {name: at_least_f32(kinds[name].dtype) if name in ("bias", "sink") else kinds[name].dtype for name in wanted}
    results = {f"d_{name}": Kind.dense(types[name], kinds[name].dims) for name in wanted}
    ready = None
    if 0 not in extents[:4]:
        written = {name: _as_operand(name.removeprefix("d_"), kind, layout) for name, kind in results.items()}
        ready = Ready(backward(config, operands, written), device, len(operands) + len(written))
    return Call(ready, results, full_lengths, extents.batch)


# ---- The graphs. Operands: q, k, v, o and d_o with dims [B, heads, length, dim]; bias, mask, q_segments and kv_segments with
# dims that broadcast to [B, N, T, S]; sink [1, N, 1, 1], q_lengths and kv_lengths [B, 1, 1, 1], seed and offset [1, 1, 1, 1];
# statistics [B, N, T, 1].


def forward(config: Config, operands: Mapping[str, Kind], results: Mapping[str, Kind]) -> Graph:
    """results: "o", and those of STATISTICS that are wanted."""
    graph = Graph(OP, intermediate="f32")
    tensors = bound(graph, {**operands, **results})
    graph.node("sdpa", **{STATISTICS.get(name, name): tensors[name] for name in ("q", "k", "v", *results)},
               **attributes(config, graph, tensors))
    return graph


def backward(config: Config, operands: Mapping[str, Kind], results: Mapping[str, Kind]) -> Graph:
    """operands: the forward's, with "o", "d_o", its statistics, perhaps "d_lse". results: "d_q", "d_bias" and the like."""
    graph = Graph(f"{OP} backward", intermediate="f32")
    tensors = bound(graph, {**operands, **results})
    ports = ("q", "k", "v", "o", "d_o", *(name for name in operands if name in STATISTICS), *results)
    graph.node("sdpa_backward", **{STATISTICS.get(name, name): tensors[name] for name in ports}, whole_rows=True,
               deterministic=config.deterministic or None, **attributes(config, graph, tensors))
    return graph


def attributes(config: Config, graph: Graph, tensors: Mapping[str, Tensor],
               change: Callable[[Expression], None] | None = None) -> dict[str, object]:
    """What nodes of the forward and the backward share, of a Config or what has its fields.

    change: what is done to capped scores before masks, which hide whatever it makes of a cell.
    """
    score = Expression(graph, "f32")

    def number(x):
        return graph.tensor(dims=(1, 1, 1, 1), dtype="f32", constant=x)

    if config.soft_cap is not None:
        scaled = score.apply("mul", score.score, number(1 / config.soft_cap))
        score.apply("mul", score.apply("tanh_fwd", scaled), number(config.soft_cap))
    if change is not None:
        change(score)
    if "mask" in tensors:
        score.apply("binary_select", tensors["mask"], score.result, number(-math.inf))
    if "q_segments" in tensors:
        scores = score.result
        same = score.apply("cmp_eq", tensors["q_segments"], tensors["kv_segments"])
        score.apply("binary_select", same, scores, number(-math.inf))
    dropout = None
    if config.dropout:
        dropout = {"probability": config.dropout, "seed": tensors["seed"], "offset": tensors["offset"],
                   "streams": tensors.get("streams")}
    return {"attn_scale": config.scale, "bias": tensors.get("bias"), "sink": tensors.get("sink"),
            "score_mod": score if score.ops else None, "padding_mask": True if "q_lengths" in tensors else None,
            "seq_len_q": tensors.get("q_lengths"), "seq_len_kv": tensors.get("kv_lengths"), "left_bound": config.left,
            "right_bound": config.right, "diagonal_alignment": "bottom_right" if config.bottom_right else None,
            "dropout": dropout}


# ---- What is demanded of arguments, in sentences. Kinds are the caller's here: q [B, T, N, H] or as the layout says.


def _operands(kinds, config, layout):
    """The graph's operands of a caller's arrays, what q, k and v say of sizes, and the lengths that are to be made."""
    extents = _extents(kinds, layout)
    batched = len(kinds["q"].dims) == 4
    added = WIDE_FLOATS if kinds["q"].dtype == "f64" else FLOATS
    for name, kind in kinds.items():
        if name == "bias":
            _check_bias(kind, extents, added)
        elif name == "mask":
            dtype_among(OP, "mask", kind, ("boolean",))
            _check_cells("mask", kind, extents)
        elif name == "sink":
            _check_sink(kind, extents, added)
        elif name in ("q_lengths", "kv_lengths"):
            _check_lengths(name, kind, extents, batched)
        elif name in ("q_segments", "kv_segments"):
            _check_segments(name, kind, extents, batched)
    operands, made = {name: _as_operand(name, kind, layout) for name, kind in kinds.items()}, {}
    # A graph wants both lengths or none, and lengths where a band leaves out whole rows.
    leaves_out = extents.queries > extents.keys and (config.left is not None or config.bottom_right)
    if leaves_out or "q_lengths" in kinds or "kv_lengths" in kinds:
        full = {"q_lengths": extents.queries, "kv_lengths": extents.keys}
        made = {name: length for name, length in full.items() if name not in kinds}
        words = {name: operands.pop(name) for name in ("seed", "offset") if name in operands}
        operands |= {name: Kind.dense("i32", (extents.batch, 1, 1, 1)) for name in made} | words
    return operands, extents, tuple(made.values())


def _as_operand(name, kind, layout):
    """A caller's array, of a rank that was checked, with the dims that the graph knows it by."""
    dims, rank = kind.dims, len(kind.dims)
    if name in ("q", "k", "v", "o", "d_o"):
        axes = (0, 1, 2, 3) if layout == "BNTH" else (0, 2, 1, 3)
        return kind.permuted(*(axes if rank == 4 else (None, *(axis - 1 for axis in axes[1:]))))
    if name in STATISTICS:
        return kind.permuted(*((0, 1, 2) if rank == 3 else (None, 0, 1)), None)
    if name in ("bias", "mask"):
        return kind.permuted(*(None,) * (4 - rank), *range(rank))
    if name == "sink":
        return kind.permuted(None, 0, None, None)
    if name == "q_segments":
        return kind.permuted(*((0, None, 1, None) if rank == 2 else (None, None, 0, None)))
    if name == "kv_segments":
        return kind.permuted(*((0, None, None, 1) if rank == 2 else (None, None, None, 0)))
    return kind.permuted(0 if dims else None, None, None, None)  # lengths, seed and offset


def _extents(kinds, layout):
    """Raises TypeError or ValueError unless q, k and v go together."""
    ranks = {len(kinds[name].dims) for name in "qkv"}
    if len(ranks) > 1:
        shapes = ", ".join(f"{name} {kinds[name].dims}" for name in "qkv")
        raise ValueError(f"{OP}: the shapes are {shapes}, expected all three with a batch or all without.")
    for name in "qkv":
        dtype_among(OP, name, kinds[name], WIDE_FLOATS if name == "q" else (kinds["q"].dtype,))
        if ranks - {3, 4}:
            raise ValueError(f"{OP}: {name} has shape {kinds[name].dims}, expected {layout} or {layout[1:]}.")
    q, k, v = (_as_operand(name, kinds[name], layout).dims for name in "qkv")
    b, n, t, h = q
    for name, dims in (("k", k), ("v", v)):
        if dims[0] != b:
            raise ValueError(f"{OP}: {name} has batch {dims[0]}, expected {b} as q has.")
    if k[:3] != v[:3]:
        raise ValueError(f"{OP}: v has shape {kinds['v'].dims}, expected that of k, {kinds['k'].dims}, save for the last dim.")
    if k[3] != h:
        raise ValueError(f"{OP}: k has head dim {k[3]}, expected {h} as q has.")
    if h == 0 or v[3] == 0:
        raise ValueError(f"{OP}: q has head dim {h} and v {v[3]}, expected at least 1.")
    if k[1] == 0 or n % k[1] != 0:
        raise ValueError(f"{OP}: k has {k[1]} heads, expected a divisor of q's {n} heads.")
    return Extents(b, n, t, k[2], v[3])


def _check_cells(name, kind, extents):
    full = tuple(extents[:4])
    shape = (1,) * (4 - len(kind.dims)) + kind.dims
    if len(shape) > 4 or any(given not in (1, most) for given, most in zip(shape, full, strict=True)):
        raise ValueError(f"{OP}: {name} has shape {kind.dims}, expected one that broadcasts to [B, N, T, S], which is {full}.")


def _check_bias(kind, extents, dtypes):
    if kind.dtype == "boolean":
        raise TypeError(f"{OP}: bias has dtype bool, expected a floating one; pass it as mask.")
    dtype_among(OP, "bias", kind, dtypes)
    _check_cells("bias", kind, extents)


def _check_sink(kind, extents, dtypes):
    dtype_among(OP, "sink", kind, dtypes)
    if kind.dims != (extents.heads,):
        raise ValueError(f"{OP}: sink has shape {kind.dims}, expected ({extents.heads},), one logit a head.")


def _check_lengths(name, kind, extents, batched):
    dtype_among(OP, name, kind, INTEGERS)
    if kind.dims != (extents.batch,) and (batched or kind.dims != ()):
        raise ValueError(f"{OP}: {name} has shape {kind.dims}, expected ({extents.batch},), one length a batch entry.")


def _check_segments(name, kind, extents, batched):
    dtype_among(OP, "segment_ids", kind, INTEGERS)
    length = extents.queries if name == "q_segments" else extents.keys
    if kind.dims != (extents.batch, length) and (batched or kind.dims != (length,)):
        raise ValueError(f"{OP}: segment_ids has shape {kind.dims}, expected ({extents.batch}, {length}), an id for each of the "
                         "positions.")


def config(dim: int, *, causal: object, window: object, scale: object, soft_cap: object, probability: object,
           deterministic: object) -> Config:
    """The call's numbers and choices, checked. dim: q's head dim."""
    left, right, bottom_right = bounds(window, causal)
    scale = max(dim, 1)**-0.5 if scale is None else _finite("scale", scale)
    if soft_cap is not None:
        soft_cap = _finite("soft_cap", soft_cap)
        check_soft_cap(OP, soft_cap)
    probability = _finite("dropout's probability", probability)
    if not 0 <= probability < 1:
        raise ValueError(f"{OP}: dropout's probability is {probability}, expected at least 0 and less than 1.")
    return Config(scale, soft_cap, left, right, bottom_right, probability, _calls.flag(OP, "deterministic", deterministic))


def check_soft_cap(op: str, soft_cap: float) -> None:
    """Raises ValueError unless the cap and its inverse are numbers of f32: an infinite one would make NaN of a score."""
    if not 1e-30 <= soft_cap <= 1e30:
        raise ValueError(f"{op}: soft_cap is {soft_cap}, expected a number from 1e-30 to 1e30.")


def split_dropout(given: object) -> tuple:
    """(probability, seed, offset) of dropout=(probability, seed) or (probability, seed, offset)."""
    if given is None:
        return 0.0, 0, 0
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
        raise TypeError(f"{OP}: dropout is {type(given).__name__}, expected (probability, seed) or (probability, seed, offset).")
    return (*given, 0)[:3]


def split_segments(given: object) -> tuple:
    """Segment ids of queries and of keys."""
    pair = given if isinstance(given, (tuple, list)) else (given, given)
    if len(pair) != 2:
        raise ValueError(f"{OP}: segment_ids has {len(pair)} entries, expected one array, or one for q and one for k.")
    if any(ids is None for ids in pair):
        raise TypeError(f"{OP}: segment_ids has None in the place of an array, expected one for q and one for k.")
    return pair


def check_ids(low: int, high: int) -> None:
    """Raises ValueError unless segment ids from low to high are numbers that f32 tells from each other."""
    if not -_MOST_ID <= low <= high <= _MOST_ID:
        raise ValueError(f"{OP}: segment_ids has ids from {low} to {high}, expected none above {_MOST_ID} in magnitude.")


def _finite(name, value):
    value = _calls.number(OP, name, value)
    if not math.isfinite(value):
        raise ValueError(f"{OP}: {name} is {value}, expected a finite number.")
    return value


def bounds(window: object, causal: object) -> tuple[int | None, int | None, bool]:
    """(left_bound, right_bound, bottom_right) of the graph's diagonal band."""
    if isinstance(causal, str):
        _calls.one_of(OP, "causal", causal, ("top_left", "bottom_right"))
    else:
        causal = _calls.flag(OP, "causal", causal)
    sides = window if isinstance(window, (tuple, list)) else (window, window)
    if len(sides) != 2 or not all(side is None or _is_whole(side) for side in sides):
        raise TypeError(f"{OP}: window is {window!r}, expected an int or a pair (left, right) of ints or None.")
    for side in sides:
        if side is not None and side < 0:
            raise ValueError(f"{OP}: window is {window!r}, expected sides of at least 0.")
    left, right = sides
    if causal:
        right = 0
    furthest = 2**31 - 2
    left = None if left is None or left >= furthest else int(left) + 1
    right = None if right is None or right >= furthest else int(right)
    return left, right, causal == "bottom_right"


def _is_whole(value):
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except TypeError:
        return False
