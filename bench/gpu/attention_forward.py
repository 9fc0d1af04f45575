"""The Hopper forward kernel: its source for a problem, its arguments, its call.

Mirrors kernels/attention/parameters.h and kernels/sm90/forward_arguments.h.
"""

import ctypes as ct
import dataclasses

import torch

from driver import Kernel, tensor_map

_FAR = 1 << 30


class Tensor(ct.Structure):
    _fields_ = [("data", ct.c_uint64), ("stride", ct.c_int64 * 4), ("offsets", ct.c_uint64),
                ("multiplier", ct.c_int64), ("offsets_are_64_bit", ct.c_int32)]

    @classmethod
    def of(cls, tensor, offsets=None, multiplier=1):
        if tensor is None:
            return cls()
        strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride())]
        return cls(tensor.data_ptr(), (ct.c_int64 * 4)(*strides),
                   0 if offsets is None else offsets.data_ptr(), multiplier, 0)


class Lengths(ct.Structure):
    _fields_ = [("data", ct.c_uint64), ("full", ct.c_int32), ("is_64_bit", ct.c_int32),
                ("cumulative", ct.c_int32)]


class Bound(ct.Structure):
    START, KV_END, TOP_LEFT, BOTTOM_RIGHT, OPERAND = range(5)
    _fields_ = [("anchor", ct.c_int32), ("upper", ct.c_int32), ("constant", ct.c_int64),
                ("operand", Tensor)]


class Scalar(ct.Structure):
    _fields_ = [("data", ct.c_uint64), ("value", ct.c_int64), ("is_64_bit", ct.c_int32)]


class Parameters(ct.Structure):
    _fields_ = [
        ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("stats", Tensor),
        ("max", Tensor), ("sum_exp", Tensor), ("loads", Tensor * 6), ("dropout_streams", Tensor),
        ("dropout_mask", Tensor),
        ("dropout_dump", Tensor), ("block_mask", Tensor), ("page_table_k", Tensor),
        ("page_table_v", Tensor), ("q_lengths", Lengths), ("kv_lengths", Lengths),
        ("bounds", Bound * 6), ("bound_count", ct.c_int32), ("batch", ct.c_int32),
        ("q_heads", ct.c_int32), ("k_heads", ct.c_int32), ("v_heads", ct.c_int32),
        ("q_length", ct.c_int32), ("kv_length", ct.c_int32), ("page_size_k", ct.c_int32),
        ("page_size_v", ct.c_int32), ("scale", ct.c_float), ("scale_operand", ct.c_uint64),
        ("sink", ct.c_uint64), ("stats_log2", ct.c_int32), ("seed", Scalar), ("offset", Scalar),
        ("dropout_threshold", ct.c_uint64), ("keep_scale", ct.c_float),
        ("keep_scale_operand", ct.c_uint64), ("threefry_stride", ct.c_int64 * 4),
    ]


class TileOrder(ct.Structure):
    _fields_ = [("q_tiles", ct.c_int32), ("section", ct.c_int32), ("total", ct.c_int32),
                ("counter", ct.c_uint64)]


class Rope(ct.Structure):
    _fields_ = [("cosines", ct.c_uint64), ("sines", ct.c_uint64), ("table_stride", ct.c_int64),
                ("scale", ct.c_float), ("table_rows", ct.c_int32), ("positions", ct.c_uint64),
                ("positions_are_64_bit", ct.c_int32), ("positions_per_row", ct.c_int32), ("position_batch_stride", ct.c_int64),
                ("position_row_stride", ct.c_int64)]

    @classmethod
    def of(cls, cosines, sines, scale=1.0):
        return cls(cosines.data_ptr(), sines.data_ptr(), cosines.stride(0), scale, cosines.shape[0], 0, 0, 0, 0, 0)


class RopeRows(ct.Structure):
    _fields_ = [("source", Tensor), ("target", Tensor), ("lengths", Lengths), ("rope", Rope)]


class Arguments(ct.Structure):
    _fields_ = [("maps", ct.c_ubyte * 512), ("sequence_maps", ct.c_uint64), ("order", TileOrder),
                ("q_rope", Rope),
                ("problem", Parameters), ("padding", ct.c_ubyte * 128)]


class SequenceMapArguments(ct.Structure):
    _fields_ = [("base", ct.c_ubyte * 512), ("maps", ct.c_uint64), ("element_bytes", ct.c_int32),
                ("problem", Parameters), ("padding", ct.c_ubyte * 128)]


def configure(qk_dim: int, v_dim: int, length: int, causal: bool, cells: str = "plain",
              windowed: bool = False) -> dict:
    """Tiles by head dims, length and work per cell: "plain", "edited" (arithmetic on the score) or
    "heavy" (operands read per cell, dropout). kernels/notes/sm90_attention_forward.md has timings.
    """
    plain = cells == "plain"
    widest = max(qk_dim, v_dim)
    if widest <= 64:
        return dict(kConsumers=3 if plain else 2, kTileN=96 if cells == "heavy" else 128,
                    kStages=3, kTakeTurns=True)
    if widest <= 128:
        if plain and not windowed and length >= (8192 if causal else 2048):
            return dict(kConsumers=3, kTileN=80)
        return dict(kConsumers=2, kTileN=80 if cells == "heavy" else 128)
    tile_n = 64 if v_dim > 192 else 96 if v_dim > 128 else 128
    return dict(kConsumers=2, kTileN=tile_n, kQStages=1, kOutputAliasesQ=v_dim <= qk_dim)


def source(config: dict, score: str = "") -> str:
    """`config` overrides sm90::ForwardConfig; `score` is the body of Score::value(cell)."""
    lines = []
    for name, value in config.items():
        if name == "Element":
            lines.append(f"  using Element = {value};")
        elif name == "kRopePairing":
            lines.append(f"  static constexpr auto {name} = attention::RopePairing::{value};")
        elif name == "kDropout":
            lines.append(f"  static constexpr auto {name} = attention::Dropout::{value};")
        else:
            kind = "bool" if isinstance(value, bool) else "int"
            lines.append(f"  static constexpr {kind} {name} = {str(value).lower()};")
    body = "\n".join(lines)
    score_type = "sm90::PlainScore"
    score_code = ""
    if score:
        score_type = "Score"
        score_code = ("struct Score {\n  static constexpr bool kIdentity = false;\n"
                      "  template <class Cell>\n  static HEDDLE_DEVICE float value(const Cell& cell) {"
                      f"\n    {score}\n  }}\n}};\n")
    rope = ""
    if config.get("kRopeDim"):
        rope = f"""
extern "C" __global__ void __launch_bounds__(128)
rope_rows(const __grid_constant__ heddle::attention::RopeRowsArguments args) {{
  using C = heddle::Config;
  heddle::attention::rope_rows<C::Element, C::kQkDim, C::kRopeDim, C::kRopePairing>(args);
}}
"""
    return f"""#include "sm90/attention_forward.cuh"
#include "sm90/sequence_maps.cuh"
namespace heddle {{
struct Config : sm90::ForwardConfig {{
{body}
}};
{score_code}using Forward = sm90::AttentionForward<Config, {score_type}>;
}}  // namespace heddle
extern "C" __constant__ int attention_forward_launch[4] = {{
    heddle::Forward::kThreads, heddle::Forward::kSharedBytes, heddle::Forward::kTileM,
    heddle::Forward::kTileN}};
extern "C" __global__ void __launch_bounds__(heddle::Forward::kThreads, 1)
attention_forward(const __grid_constant__ heddle::sm90::ForwardArguments args) {{
  heddle::Forward::run(args);
}}
extern "C" __global__ void __launch_bounds__(128)
sequence_maps(const __grid_constant__ heddle::sm90::SequenceMapArguments args) {{
  heddle::sm90::make_sequence_maps(args);
}}
{rope}"""


def causal_bounds(bottom_right=False, left=None):
    """Keep key j for row i iff i + offset - left < j <= i + offset."""
    anchor = Bound.BOTTOM_RIGHT if bottom_right else Bound.TOP_LEFT
    bounds = [Bound(anchor, 1, 1)]
    if left is not None:
        bounds.append(Bound(anchor, 0, 1 - left))
    return bounds


def section_heads(length: int, kv_head_bytes: int, heads: int, group: int) -> int:
    """Heads dealt out together: 16 MiB of keys and values while rows are short, else 64 key heads."""
    section = (16 << 20) // max(1, kv_head_bytes) if length <= 1024 else 64 * group
    return max(1, min(heads, section))


@dataclasses.dataclass
class Call:
    """One execution, bound to its tensors: q (B, Hq, Sq, D), k (B, Hk, Skv, D), v and o likewise."""

    kernel: Kernel
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    stats: torch.Tensor | None = None
    max: torch.Tensor | None = None
    sum_exp: torch.Tensor | None = None
    scale: float | None = None
    bounds: tuple = ()
    loads: tuple = ()
    sink: torch.Tensor | None = None
    q_lengths: torch.Tensor | None = None
    kv_lengths: torch.Tensor | None = None
    q_offsets: torch.Tensor | None = None  # ragged: rows before each sequence; q, o, stats
    kv_offsets: torch.Tensor | None = None
    dropout: tuple | None = None  # (probability, seed, offset)
    rope: tuple | None = None  # (cosines, sines, scale): q is rotated on its way in, k before
    rotated_k: torch.Tensor | None = None  # where; k is read from there
    counter: torch.Tensor | None = None
    section: int | None = None

    def __post_init__(self):
        q, k, v, o = self.q, self.k, self.v, self.o
        ragged = self.q_offsets is not None
        batch = len(self.q_offsets) - 1 if ragged else q.shape[0]
        self.args = Arguments()
        p = self.args.problem
        q_length = int(self.q_lengths.max()) if ragged else q.shape[2]
        kv_length = int(self.kv_lengths.max()) if ragged else k.shape[2]
        q_row = q.stride(2)
        p.q = Tensor.of(q, self.q_offsets, q_row)
        p.k = Tensor.of(k, self.kv_offsets, k.stride(2))
        p.v = Tensor.of(v, self.kv_offsets, v.stride(2))
        p.o = Tensor.of(o, self.q_offsets, o.stride(2))
        for name in ("stats", "max", "sum_exp"):
            tensor = getattr(self, name)
            setattr(p, name, Tensor.of(tensor, self.q_offsets, 0 if tensor is None else tensor.stride(2)))
        for i, load in enumerate(self.loads):
            p.loads[i] = Tensor.of(load)
        p.q_lengths = Lengths(0 if self.q_lengths is None else self.q_lengths.data_ptr(), q_length)
        p.kv_lengths = Lengths(0 if self.kv_lengths is None else self.kv_lengths.data_ptr(), kv_length)
        for i, bound in enumerate(self.bounds):
            p.bounds[i] = bound
        p.bound_count = len(self.bounds)
        p.batch, p.q_heads, p.k_heads, p.v_heads = batch, q.shape[1], k.shape[1], v.shape[1]
        p.q_length, p.kv_length = q_length, kv_length
        p.scale = q.shape[3] ** -0.5 if self.scale is None else self.scale
        p.sink = 0 if self.sink is None else self.sink.data_ptr()
        if self.dropout is not None:
            probability, seed, offset = self.dropout
            p.seed, p.offset = Scalar(0, seed, 1), Scalar(0, offset, 1)
            p.dropout_threshold = int(probability * 2**32)
            p.keep_scale = 1 / (1 - probability)
        tiles = -(-q_length // self.kernel.tile_m)
        heads = batch * q.shape[1]
        kv_bytes = kv_length * (q.shape[3] + v.shape[3]) * 2 * k.shape[1] // q.shape[1]
        section = self.section or (1 if not self.bounds else section_heads(q_length, kv_bytes, heads,
                                                q.shape[1] // k.shape[1]))
        self.args.order = TileOrder(tiles, section, heads * tiles,
                                    0 if self.counter is None else self.counter.data_ptr())
        self.rope_rows = None
        if self.rope is not None:
            self.args.q_rope = Rope.of(*self.rope)
            self.rope_rows = RopeRows(p.k, Tensor.of(self.rotated_k), p.kv_lengths, self.args.q_rope)
            p.k, k = self.rope_rows.target, self.rotated_k
        maps = b"".join((tensor_map(q, 64), tensor_map(k, self.kernel.tile_n),
                         tensor_map(v, self.kernel.tile_n), tensor_map(o, 64)))
        ct.memmove(self.args.maps, maps, 512)
        self.map_args = None
        if self.q_lengths is not None or self.kv_lengths is not None or ragged:
            self.maps = torch.empty(batch * 512 + 128, device="cuda", dtype=torch.uint8)
            aligned = (self.maps.data_ptr() + 127) & ~127
            self.args.sequence_maps = aligned
            self.map_args = SequenceMapArguments()
            ct.memmove(self.map_args.base, maps, 512)
            self.map_args.maps, self.map_args.element_bytes = aligned, 2
            self.map_args.problem = p
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.blocks = min(processors, heads * tiles)

    def __call__(self):
        if self.rope_rows is not None:
            grid = (-(-self.args.problem.kv_length // 16), self.args.problem.k_heads,
                    self.args.problem.batch)
            self.kernel.launch(grid, self.rope_rows, name="rope_rows", threads=128, shared_bytes=0)
        if self.map_args is not None:
            entries = 4 * self.args.problem.batch
            self.kernel.launch(-(-entries // 128), self.map_args, name="sequence_maps", threads=128,
                               shared_bytes=0)
        self.kernel.launch(self.blocks, self.args)
