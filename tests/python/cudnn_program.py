"""Programs as people write them for the `cudnn` package, and attention in f64 by numpy alone that judges them."""

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np

TYPES = {np.dtype(np.float32): cudnn.data_type.FLOAT, np.dtype(np.float16): cudnn.data_type.HALF,
         np.dtype(ml_dtypes.bfloat16): cudnn.data_type.BFLOAT16, np.dtype(np.int32): cudnn.data_type.INT32,
         np.dtype(np.int64): cudnn.data_type.INT64, np.dtype(np.uint8): cudnn.data_type.UINT8}


def row_major(dims):
    return [int(np.prod(dims[i + 1:])) for i in range(len(dims))]


def layout(array):
    return [step // array.itemsize for step in array.strides]


class Program:
    """A graph on the CPU and the arrays of its pack, by uid: the first tensor has the uid 0."""

    def __init__(self, dtype=np.float32, **options):
        self.graph = cudnn.pygraph(io_data_type=TYPES[np.dtype(dtype)], intermediate_data_type=cudnn.data_type.FLOAT,
                                   compute_data_type=cudnn.data_type.FLOAT, handle=cudnn.create_handle(device="cpu"), **options)
        self.pack = {}

    def give(self, array, **options):
        """A tensor of the graph for an array of inputs; None for None."""
        if array is None:
            return None
        uid = len(self.pack)
        self.pack[uid] = array
        options = {"dim": array.shape, "stride": layout(array), "data_type": TYPES[array.dtype], "uid": uid,
                   "name": f"t{uid}"} | options
        return self.graph.tensor(**options)

    def take(self, tensor, dims, dtype=np.float32, strides=None, buffer=None):
        """Makes a tensor an output, in memory of NaN; the array it will be in."""
        uid, strides = len(self.pack), strides or row_major(dims)
        if buffer is None:
            buffer = np.full(1 + sum((n - 1) * s for n, s in zip(dims, strides, strict=True)), np.nan, dtype)
        self.pack[uid] = buffer
        tensor.set_output(True).set_uid(uid).set_dim(dims).set_stride(strides).set_data_type(TYPES[np.dtype(dtype)])
        size = np.dtype(dtype).itemsize
        return np.lib.stride_tricks.as_strided(buffer, dims, [s * size for s in strides])

    def build(self):
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.graph.check_support()
        self.graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
        return self

    def run(self, **options):
        self.graph.execute(self.pack, np.full(self.graph.get_workspace_size(), 255, np.uint8), **options)
        return self


def heads(x, count):
    """Each head as often as query heads share it."""
    return np.repeat(x.astype(np.float64), count // x.shape[1], axis=1)


def scores(q, k, scale=1.0, change=None, bias=None, hidden=None):
    """What the softmax is of, -inf where a key is hidden; `change` is a function of scores."""
    s = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), heads(k, q.shape[1])) * scale
    s = s if change is None else change(s)
    s = s if bias is None else s + bias.astype(np.float64)
    return s if hidden is None else np.where(hidden, -np.inf, s)


def forward(s, v, sink=None, keep=None):
    """O, log-sum-exp, maximum and sum of exponentials, of scores [B, Hq, Sq, Skv]. keep: what each weight is multiplied by."""
    most = s.max(-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        most = np.maximum(most, sink)
    at = np.where(np.isfinite(most), most, 0)
    p = np.exp(s - at)
    total = p.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - at))
    with np.errstate(divide="ignore"):
        stats = np.where(total > 0, at + np.log(total), -np.inf)
    weights = p / np.where(total > 0, total, 1) * (1 if keep is None else keep)
    return np.einsum("bhqk,bhkd->bhqd", weights, heads(v, s.shape[1])), stats, most, total


def backward(s, q, k, v, d_o, scale=1.0, sink=None, keep=None, slope=None):
    """dQ, dK, dV, dS before `slope` (the derivative of what changed scores), and dSink."""
    o, stats, *_ = forward(s, v, sink, keep)
    d_o, q64 = d_o.astype(np.float64), q.astype(np.float64)
    p = np.exp(s - np.where(np.isfinite(stats), stats, 0)) * np.isfinite(stats)
    kept = p * (1 if keep is None else keep)
    d_p = np.einsum("bhqd,bhkd->bhqk", d_o, heads(v, q.shape[1])) * (1 if keep is None else keep)
    row = (d_o * o).sum(-1, keepdims=True)
    d_s = p * (d_p - row)
    d_z = d_s * scale * (1 if slope is None else slope)
    d_sink = None if sink is None else -(np.where(np.isfinite(stats), np.exp(sink - stats), 0) * row).sum((0, 2))[None, :, None]
    whole = [np.einsum("bhqk,bhkd->bhqd", d_z, heads(k, q.shape[1])), np.einsum("bhqk,bhqd->bhkd", d_z, q64),
             np.einsum("bhqk,bhqd->bhkd", kept, d_o)]
    for n, like in ((1, k), (2, v)):
        b, h, length, d = like.shape
        whole[n] = whole[n].reshape(b, h, -1, length, d).sum(2)
    return *whole, d_s, d_sink


def near(found, truth, dtype=np.float32):
    """Equal where the truth is infinite, else within a few roundings of the largest number."""
    found, truth = np.asarray(found, np.float64), np.broadcast_to(np.asarray(truth, np.float64), found.shape)
    finite = np.isfinite(truth)
    np.testing.assert_array_equal(found[~finite], truth[~finite])
    roundings = 20 if dtype == np.float32 else 1.5
    allowed = roundings * float(ml_dtypes.finfo(dtype).eps) * max(1.0, np.abs(truth[finite]).max(initial=0))
    assert np.isfinite(found[finite]).all()
    error = np.abs(found[finite] - truth[finite]).max(initial=0)
    assert error <= allowed, f"off by {error}"


def drawn(rng, *dims, dtype=np.float32):
    return rng.standard_normal(dims).astype(dtype)
