"""The forward kernel's arguments (kernels/attention/forward_arguments.cuh) and its call."""

import ctypes as ct

import torch

from driver import Kernel, tensor_map

_NO_UPPER = 2**31 - 1


class RowOutput(ct.Structure):
    _fields_ = [("data", ct.c_uint64), ("batch", ct.c_int64), ("head", ct.c_int64),
                ("row", ct.c_int64)]

    @classmethod
    def of(cls, tensor):
        if tensor is None:
            return cls(0, 0, 0, 0)
        return cls(tensor.data_ptr(), *tensor.stride()[:3])


class Bounds(ct.Structure):
    _fields_ = [(name, ct.c_int32) for name in (
        "lower", "upper", "lower_diagonal", "upper_diagonal", "lower_bottom_right",
        "upper_bottom_right")]


class TileOrder(ct.Structure):
    _fields_ = [("q_tiles", ct.c_int32), ("section", ct.c_int32), ("total", ct.c_int32),
                ("snake", ct.c_int32), ("counter", ct.c_uint64)]


class Arguments(ct.Structure):
    _fields_ = [
        ("maps", ct.c_ubyte * 512), ("log_sum_exp", RowOutput), ("row_max", RowOutput),
        ("row_sum", RowOutput), ("bounds", Bounds), ("order", TileOrder), ("batch", ct.c_int32),
        ("heads", ct.c_int32), ("queries_per_key_head", ct.c_int32),
        ("queries_per_value_head", ct.c_int32), ("q_length", ct.c_int32), ("kv_length", ct.c_int32),
        ("scale", ct.c_float), ("sink", ct.c_uint64), ("q_lengths", ct.c_uint64),
        ("kv_lengths", ct.c_uint64), ("score", ct.c_uint64 * 24), ("padding", ct.c_ubyte * 128),
    ]


def make_bounds(left=None, right=None, bottom_right=False):
    """keep key j for row i iff  i + offset - left < j <= i + offset + right."""
    return Bounds(0, _NO_UPPER, 0 if left is None else 1 - left,
                  0 if right is None else right + 1, int(bottom_right), int(bottom_right))


class Forward:
    """One call, bound to its tensors: `q` (B, H, Sq, D), `k` (B, Hk, Skv, D), `v`, `o` likewise."""

    def __init__(self, kernel: Kernel, q, k, v, o, log_sum_exp=None, scale=None, bounds=None,
                 section=1, snake=0, counter=None, row_max=None, row_sum=None, sink=None,
                 q_lengths=None, kv_lengths=None, score=()):
        self.kernel = kernel
        batch, heads, q_length, _ = q.shape
        args = Arguments()
        maps = (tensor_map(q, 64), tensor_map(k, kernel.tile_n), tensor_map(v, kernel.tile_n),
                tensor_map(o, 64))
        ct.memmove(args.maps, b"".join(maps), 512)
        args.log_sum_exp = RowOutput.of(log_sum_exp)
        args.row_max = RowOutput.of(row_max)
        args.row_sum = RowOutput.of(row_sum)
        args.bounds = bounds or make_bounds()
        q_tiles = -(-q_length // kernel.tile_m)
        total = batch * heads * q_tiles
        args.order = TileOrder(q_tiles, section, total, snake,
                               0 if counter is None else counter.data_ptr())
        args.batch, args.heads = batch, heads
        args.queries_per_key_head = heads // k.shape[1]
        args.queries_per_value_head = heads // v.shape[1]
        args.q_length, args.kv_length = q_length, k.shape[2]
        args.scale = q.shape[3] ** -0.5 if scale is None else scale
        for name, value in (("sink", sink), ("q_lengths", q_lengths), ("kv_lengths", kv_lengths)):
            setattr(args, name, 0 if value is None else value.data_ptr())
        for i, value in enumerate(score):
            args.score[i] = value
        self.args = args
        self.keep = (q, k, v, o, log_sum_exp, counter, sink, q_lengths, kv_lengths)
        blocks = torch.cuda.get_device_properties(0).multi_processor_count
        self.blocks = min(blocks, total)

    def __call__(self):
        self.kernel.launch(self.blocks, self.args)


def reference(q, k, v, scale, visible=None, score=None, sink=None):
    """O and log-sum-exp in f64; `visible(i, j)` and `score(s, i, j)` on index tensors."""
    heads = q.shape[1]
    k = k.double().repeat_interleave(heads // k.shape[1], 1)
    v = v.double().repeat_interleave(heads // v.shape[1], 1)
    s = scale * (q.double() @ k.transpose(-1, -2))
    i = torch.arange(s.shape[-2], device=s.device)[:, None]
    j = torch.arange(s.shape[-1], device=s.device)[None, :]
    if score is not None:
        s = score(s, i, j)
    if visible is not None:
        s = s.masked_fill(~visible(i, j), float("-inf"))
    lse = torch.logsumexp(s, -1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.double()[None, :, None])
    p = torch.exp(s - torch.where(lse.isinf(), 0, lse)[..., None])
    return p @ v, lse


def naive(q, k, v, scale, visible=None, score=None, sink=None):
    """The same, operation by operation, in the inputs' own precision."""
    heads = q.shape[1]
    k = k.repeat_interleave(heads // k.shape[1], 1)
    v = v.repeat_interleave(heads // v.shape[1], 1)
    s = (q @ k.transpose(-1, -2)) * scale
    i = torch.arange(s.shape[-2], device=s.device)[:, None]
    j = torch.arange(s.shape[-1], device=s.device)[None, :]
    if score is not None:
        s = score(s, i, j).to(q.dtype)
    if visible is not None:
        s = s.masked_fill(~visible(i, j), float("-inf"))
    if sink is not None:
        column = sink.to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)
        p = torch.softmax(torch.cat([s, column], -1), -1)[..., :-1]
    else:
        p = torch.softmax(s, -1)
    return p.nan_to_num(0) @ v
