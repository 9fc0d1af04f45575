"""heddle.attention, rope, rms_norm and layer_norm of NumPy's arrays and of others with DLPack, against the formulas in f64."""

import math
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import heddle

EPS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-13}
LOW = [np.float32, np.float16, ml_dtypes.bfloat16]
B, T, S, N, K, H, D = 2, 7, 9, 4, 2, 16, 8


def drawn(*shape, dtype=np.float32, seed=None):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def rows(dtype=np.float32):
    return drawn(B, T, N, H, dtype=dtype), drawn(B, S, K, H, dtype=dtype), drawn(B, S, K, D, dtype=dtype)


def formula(q, k, v, *, bias=None, visible=None, scale=None, cap=None, sink=None):
    """softmax attention in f64 of [B, T, N, H] and the like, and the log-sum-exp."""
    q, k, v = (np.moveaxis(x.astype(np.float64), 2, 1) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) * (q.shape[-1]**-0.5 if scale is None else scale)
    s = s if cap is None else cap * np.tanh(s / cap)
    s = s if bias is None else s + bias.astype(np.float64)
    s = s if visible is None else np.where(visible, s, -np.inf)
    more = np.full((*s.shape[:3], 1), -np.inf) if sink is None else np.broadcast_to(
        sink.astype(np.float64)[:, None, None], (*s.shape[:3], 1))
    with np.errstate(all="ignore"):
        largest = np.maximum(np.maximum(s.max(-1, keepdims=True), more), -1e300)
        p = np.exp(s - largest)
        total = p.sum(-1, keepdims=True) + np.exp(more - largest)
        o = np.where(total > 0, p / np.where(total > 0, total, 1), 0) @ v
        return np.moveaxis(o, 1, 2), (largest + np.log(total))[..., 0]


def agree(found, expected, dtype=np.float32):
    tolerance = EPS[np.dtype(dtype).name]
    assert found.dtype == dtype and found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=4 * tolerance, atol=4 * tolerance)


i, j = np.arange(T)[:, None], np.arange(S)[None]
MASK = np.random.default_rng(1).random((B, N, T, S)) > 0.3
MASK[:, :, 2] = False  # a query without keys
BIAS, SINK = drawn(N, 1, S, seed=2), drawn(N, seed=3)
LENGTHS = np.array([T, 4]), np.array([S, 5])
IDS = np.arange(T) // 3 + np.zeros((B, 1), np.int64), np.arange(S) // 4 + np.zeros((B, 1), np.int64)
BY_LENGTH = (j < LENGTHS[1][:, None, None, None]) & (i < LENGTHS[0][:, None, None, None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options, expected", [
    ({}, {}),
    ({"bias": BIAS}, {"bias": BIAS}),
    ({"bias": BIAS.astype(np.float16)}, {"bias": BIAS.astype(np.float16)}),
    ({"mask": MASK}, {"visible": MASK}),
    ({"mask": MASK[:, :1, :, :1].repeat(S, 3)[:, :, ::-1]}, {"visible": MASK[:, :1, ::-1, :1]}),
    ({"causal": True}, {"visible": j <= i}),
    ({"causal": "bottom_right"}, {"visible": j <= i + S - T}),
    ({"window": (2, None)}, {"visible": j >= i - 2}),
    ({"causal": True, "window": 3}, {"visible": (j <= i) & (j >= i - 3)}),
    ({"scale": 0.7, "soft_cap": 1.5, "bias": BIAS}, {"scale": 0.7, "cap": 1.5, "bias": BIAS}),
    ({"sink": SINK}, {"sink": SINK}),
    ({"sink": SINK.astype(ml_dtypes.bfloat16), "mask": MASK}, {"sink": SINK.astype(ml_dtypes.bfloat16), "visible": MASK}),
    ({"q_lengths": LENGTHS[0], "kv_lengths": LENGTHS[1].astype(np.int32)}, {"visible": BY_LENGTH}),
    ({"kv_lengths": LENGTHS[1]}, {"visible": j < LENGTHS[1][:, None, None, None]}),
    ({"kv_lengths": np.array([2**32 + 3, 3 - 2**32])}, {"visible": j < np.array([S, 0])[:, None, None, None]}),
    ({"segment_ids": IDS}, {"visible": (IDS[0][:, :, None] == IDS[1][:, None])[:, None]}),
])
def test_attention(options, expected, dtype):
    q, k, v = rows(dtype)
    o, lse = heddle.attention(q, k, v, return_lse=True, **options)
    expected_o, expected_lse = formula(q, k, v, **expected)
    if "q_lengths" in options:
        o[1, 4:], lse[1, :, 4:] = 0, expected_lse[1, :, 4:]  # rows past the length say nothing
    agree(o, expected_o, dtype)
    expected_lse[expected_lse < -1e200] = -np.inf
    agree(lse, expected_lse, dtype)


def test_biases_and_sinks_of_f64():
    q, k, v = rows(np.float64)
    bias, sink = drawn(N, 1, S, dtype=np.float64), drawn(N, dtype=np.float64)
    o, lse = heddle.attention(q, k, v, bias=bias, sink=sink, return_lse=True)
    for found, expected in zip((o, lse), formula(q, k, v, bias=bias, sink=sink), strict=True):
        agree(found, expected, np.float64)


@pytest.mark.parametrize("dtype", [*LOW, np.float64])
def test_attention_of_each_dtype_layout_and_stride(dtype):
    q, k, v = rows(dtype)
    expected, _ = formula(q, k, v)
    agree(heddle.attention(q, k, v), expected, dtype)
    agree(heddle.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="BNTH"), expected.swapaxes(1, 2), dtype)
    agree(heddle.attention(q[1], k[1], v[1]), expected[1], dtype)
    backwards = [np.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in (q, k, v)]
    wide = [np.repeat(x, 2, -1)[..., ::2] for x in (q, k, v)]
    record = np.zeros((B, T, N, H), [("pad", "u1"), ("x", dtype)])  # elements at odd addresses
    record["x"] = q
    for given in (backwards, wide, (record["x"], k, v), [np.asfortranarray(x) for x in (q, k, v)]):
        agree(heddle.attention(*given), expected, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("queries, with_lse", [(9, True), (1, False)])
def test_attention_over_many_keys_loses_nothing(queries, with_lse, dtype):
    """Of so many heads that none is cut into parts for more workers, which would be summed apart."""
    heads, keys = 16, 1 << 14
    q, k, v = (drawn(length, heads, 8) / 4 + add for length, add in ((queries, 0), (keys, 0), (keys, 1)))
    o = heddle.attention(*(x.astype(dtype) for x in (q, k, v)), return_lse=with_lse)
    s = np.einsum("tnh,snh->nts", *(x.astype(np.longdouble) for x in (q, k))) / np.sqrt(np.longdouble(8))
    p = np.exp(s - s.max(-1, keepdims=True))
    expected = np.einsum("nts,snd->tnd", p / p.sum(-1, keepdims=True), v.astype(np.longdouble))
    assert np.abs((o[0] if with_lse else o) - expected).max() / np.abs(expected).max() < 8 * np.finfo(dtype).eps


def test_arrays_of_a_file_may_lie_anywhere_in_it(tmp_path):
    """As those of a file whose header has an odd number of bytes."""
    q, k, v = rows()
    (tmp_path / "arrays").write_bytes(b"odd" + k.tobytes())
    mapped = np.memmap(tmp_path / "arrays", k.dtype, "r", offset=3, shape=k.shape)
    assert not mapped.flags.aligned
    np.testing.assert_array_equal(heddle.attention(q, mapped, v), heddle.attention(q, k, v))
    positions, angles = np.arange(T), drawn(T, H // 2)
    odd = np.frombuffer(b"odd" + positions.tobytes(), positions.dtype, offset=3)
    np.testing.assert_array_equal(heddle.rope(q, angles, positions=odd), heddle.rope(q, angles))


def test_matrices_of_numpy_are_arrays():
    """Whose product by `*` is of another kind; one column is normalised by NumPy."""
    x = drawn(5, 1)
    for op in (heddle.rms_norm, heddle.layer_norm):
        np.testing.assert_array_equal(op(np.matrix(x), np.ones(1, np.float32)), op(x, np.ones(1, np.float32)))
    q, k, v = rows()
    mask = np.arange(T * S).reshape(T, S) % 3 > 0
    np.testing.assert_array_equal(heddle.attention(q, k, v, mask=np.matrix(mask)), heddle.attention(q, k, v, mask=mask))


def test_attention_of_nothing():
    q, k, v = rows()
    o, lse = heddle.attention(q, k[:, :0], v[:, :0], sink=SINK, return_lse=True)
    assert (o == 0).all() and (lse == SINK[:, None]).all()
    assert (heddle.attention(q, k[:, :0], v[:, :0], return_lse=True)[1] == -np.inf).all()
    lengths = np.minimum(np.arange(B) + 2, T)  # rows behind them have no sink either
    lse = heddle.attention(q, k[:, :0], v[:, :0], sink=SINK, q_lengths=lengths, return_lse=True)[1]
    np.testing.assert_array_equal(lse, np.where(np.arange(T) < lengths[:, None, None], SINK[:, None], -np.inf))
    alone = heddle.attention(q[0], k[0, :0], v[0, :0], sink=SINK, q_lengths=lengths[:1], return_lse=True)[1]
    np.testing.assert_array_equal(alone, lse[0])
    assert heddle.attention(q[:0], k[:0], v[:0]).shape == (0, T, N, D)


def test_threads_have_workspaces_of_their_own():
    """Small calls take a workspace that their thread keeps, larger ones one of their own."""
    lengths = [1, 3, 40, 300, 17, 900]
    assert heddle.attention(*(drawn(1, 2000, 8, 64) for _ in range(3))).shape == (1, 2000, 8, 64)  # more than a thread keeps
    programs = [[drawn(2, t, 4, 16, seed=n) for n in range(3)] for t in lengths]
    expected = [formula(*program)[0] for program in programs]

    def repeat(first):
        for n in range(60):
            place = (first + n) % len(programs)
            agree(heddle.attention(*programs[place]), expected[place])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, range(4)))


def test_dropout_drops_its_share_and_is_repeatable():
    q, k, v = drawn(1, 64, 1, 16), drawn(1, 64, 1, 16), np.eye(64, dtype=np.float32)[None, :, None]
    weights = heddle.attention(q, k, v)[0, :, 0]  # values of the identity show the weights
    dropped = heddle.attention(q, k, v, dropout=(0.25, 7))[0, :, 0]
    kept = dropped != 0
    np.testing.assert_allclose(dropped, np.where(kept, weights / 0.75, 0), rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 5 * (0.25 * 0.75 / kept.size)**0.5
    assert (heddle.attention(q, k, v, dropout=(0.25, 7))[0, :, 0] == dropped).all()
    for other in ((0.25, 8), (0.25, 7, 1)):
        assert ((heddle.attention(q, k, v, dropout=other)[0, :, 0] != 0) != kept).any()


@pytest.mark.parametrize("change, error, sentence", [
    ({"q": np.float64}, TypeError, "attention: k has dtype float32, expected float64"),
    ({"v": np.float64}, TypeError, "attention: v has dtype float64, expected float32"),
    ({"q": lambda x: x.tolist()}, TypeError, "attention: q is of type list, expected an array"),
    ({"q": lambda x: 5}, TypeError, "attention: q is of type int, expected an array"),
    ({"k": lambda x: np.ma.masked_array(x)}, TypeError, "attention: k is an array with a mask of its own"),
    ({"q": lambda x: x.astype(">f4")}, TypeError, "attention: q has data type >f4, of another byte order"),
    ({"q": lambda x: x.astype(np.complex64)}, TypeError, "attention: q has a data type that Heddle has no name for"),
    ({"q": lambda x: x[0]}, ValueError, "expected all three with a batch or all without"),
    ({"k": lambda x: x[:1]}, ValueError, "attention: k has batch 1, expected 2 as q has"),
    ({"v": lambda x: x[:, 1:]}, ValueError, r"attention: v has shape \(2, 8, 2, 8\), expected that of k"),
    ({"k": lambda x: x[..., :8]}, ValueError, "attention: k has head dim 8, expected 16 as q has"),
    ({"q": lambda x: x[:, :, :3]}, ValueError, "attention: k has 2 heads, expected a divisor of q's 3 heads"),
    ({"bias": np.zeros((T, S))}, TypeError, "attention: bias has dtype float64, expected float32"),
    ({"bias": MASK}, TypeError, "bias has dtype bool, expected a floating one; pass it as mask"),
    ({"mask": BIAS}, TypeError, "attention: mask has dtype float32, expected bool"),
    ({"mask": MASK[:, :3]}, ValueError, r"attention: mask has shape \(2, 3, 7, 9\), expected one that broadcasts"),
    ({"sink": SINK[:2]}, ValueError, r"attention: sink has shape \(2,\), expected \(4,\)"),
    ({"kv_lengths": LENGTHS[1] * 1.0}, TypeError, "attention: kv_lengths has dtype float64, expected int32 or int64"),
    ({"kv_lengths": LENGTHS[1][:1]}, ValueError, r"attention: kv_lengths has shape \(1,\), expected \(2,\)"),
    ({"segment_ids": (IDS[0], IDS[1] + 2**24)}, ValueError, "attention: segment_ids has ids from 1677721[67] to .*, expected none"),
    ({"segment_ids": IDS[0]}, ValueError, r"attention: segment_ids has shape \(2, 7\), expected \(2, 9\)"),
    ({"causal": 1}, TypeError, "attention: causal is int, expected True or False"),
    ({"causal": "left"}, ValueError, "attention: causal is 'left', expected 'top_left' or 'bottom_right'"),
    ({"window": -1}, ValueError, "attention: window is -1, expected sides of at least 0"),
    ({"window": (1, 2, 3)}, TypeError, "attention: window is .1, 2, 3., expected an int or a pair"),
    ({"scale": "big"}, TypeError, "attention: scale is of type str, expected a number"),
    ({"scale": np.inf}, ValueError, "attention: scale is inf, expected a finite number"),
    ({"soft_cap": 0}, ValueError, "attention: soft_cap is 0.0, expected a number from 1e-30 to 1e30"),
    ({"soft_cap": 1e-40}, ValueError, "attention: soft_cap is 1e-40, expected a number from 1e-30 to 1e30"),
    ({"soft_cap": 1e39}, ValueError, r"attention: soft_cap is 1e.39, expected a number from 1e-30 to 1e30"),
    ({"dropout": 0.5}, TypeError, "attention: dropout is float, expected .probability, seed."),
    ({"dropout": (1, 3)}, ValueError, "dropout's probability is 1.0, expected at least 0 and less than 1"),
    ({"dropout": (0.5, 1.5)}, TypeError, "dropout's seed is of type float, expected an int"),
    ({"return_lse": 1}, TypeError, "attention: return_lse is int, expected True or False"),
    ({"layout": "NHTB"}, ValueError, "attention: layout is 'NHTB', expected 'BTNH' or 'BNTH'"),
])
def test_attention_refuses_in_sentences(change, error, sentence):
    given = dict(zip("qkv", rows(), strict=True))
    for _ in range(2):  # what is refused is not kept
        arguments = {name: (value(given[name]) if callable(value) and not isinstance(value, type) else given[name].astype(value))
                     if name in given else value for name, value in change.items()}
        with pytest.raises(error, match=sentence):
            heddle.attention(**(given | arguments))


# ---- RoPE


def rotated(x, angles, rope_dim, scale=1.0, interleaved=False, leading=False):
    """[B, T, N, H] rotated in f64 by angles [B or 1, T, rope_dim / 2]."""
    x, of_pairs = x.astype(np.float64), slice(rope_dim) if leading else slice(x.shape[-1] - rope_dim, None)
    y, part, half = x.copy(), x[..., of_pairs], rope_dim // 2
    first, second = (part[..., ::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    c, s = np.cos(angles)[:, :, None], np.sin(angles)[:, :, None]
    turned = np.stack([first * c - second * s, second * c + first * s], -1 if interleaved else -2)
    y[..., of_pairs] = turned.reshape(part.shape)
    return y * scale


def angle(positions, rope_dim, base=10000.0):
    rates = (base**(-2 * np.arange(rope_dim // 2) / rope_dim)).astype(np.float32)
    return (positions[..., None].astype(np.float32) * rates).astype(np.float64)


TABLE, PLACES = drawn(40, 8, seed=5), np.random.default_rng(6).integers(0, 40, (B, T))


@pytest.mark.parametrize("dtype", [*LOW, np.float64])
@pytest.mark.parametrize("options, angles, how", [
    ({}, angle(np.arange(T)[None], H), {}),
    ({"positions": PLACES}, angle(PLACES, H), {}),
    ({"positions": PLACES[0].astype(np.int32), "base": 100.0}, angle(PLACES[:1], H, 100.0), {}),
    ({"angles": TABLE}, TABLE[None, :T].astype(np.float64), {}),
    ({"angles": TABLE, "positions": PLACES}, TABLE[PLACES].astype(np.float64), {}),
    ({"rope_dim": 8, "output_scale": 0.5, "pairing": "interleaved"}, angle(np.arange(T)[None], 8),
     {"rope_dim": 8, "scale": 0.5, "interleaved": True}),
    ({"rope_dim": 6, "leading": True, "positions": PLACES}, angle(PLACES, 6), {"rope_dim": 6, "leading": True}),
    ({"rope_dim": 10, "leading": True, "pairing": "interleaved", "output_scale": -2.0}, angle(np.arange(T)[None], 10),
     {"rope_dim": 10, "leading": True, "scale": -2.0, "interleaved": True}),
    ({"leading": np.True_}, angle(np.arange(T)[None], H), {}),
])
def test_rope(options, angles, how, dtype):
    x = drawn(B, T, N, H, dtype=dtype)
    expected = rotated(x, angles, **({"rope_dim": H} | how))
    tolerance = max(EPS[np.dtype(dtype).name], 1e-6)  # angles are f32
    for found in (heddle.rope(x, **options), heddle.rope(x.swapaxes(1, 2), layout="BNTH", **options).swapaxes(1, 2)):
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=4 * tolerance)
    if "positions" not in options or options["positions"].ndim == 1:
        np.testing.assert_array_equal(heddle.rope(x[1], **options), heddle.rope(x, **options)[1])


@pytest.mark.parametrize("change, error, sentence", [
    ({"x": np.ones((B, T, N, 3), np.float32)}, ValueError, "rope: x has head dim 3, expected an even one"),
    ({"x": np.ones((T, 4), np.float32)}, ValueError, r"rope: x has shape \(7, 4\), expected BTNH or TNH"),
    ({"x": np.ones((B, T, N, H), np.int32)}, TypeError, "rope: x has dtype int32, expected float64 or float32"),
    ({"angles": TABLE.astype(np.float64)}, TypeError, "rope: angles has dtype float64, expected float32"),
    ({"angles": TABLE[:5]}, ValueError, "rope: angles has 5 rows, expected at least 7, the length of x"),
    ({"angles": TABLE[:, 1:]}, ValueError, r"rope: angles has shape \(40, 7\), expected \[P, 8\], half of rope_dim"),
    ({"angles": TABLE, "positions": PLACES + 1}, ValueError, "rope: positions are from .* to 40, expected each to have one"),
    ({"angles": TABLE, "positions": PLACES - 40}, ValueError, "rope: positions are from -.*, expected each to have one"),
    ({"positions": PLACES * 1.0}, TypeError, "rope: positions has dtype float64, expected int32 or int64"),
    ({"positions": PLACES[:, 1:]}, ValueError, r"rope: positions has shape \(2, 6\), expected \(7,\) or \(2, 7\)"),
    ({"rope_dim": 5}, ValueError, "rope: rope_dim is 5, expected an even number from 2 to the head dim 16"),
    ({"leading": 1}, TypeError, "rope: leading is int, expected True or False"),
    ({"leading": None}, TypeError, "rope: leading is NoneType, expected True or False"),
    ({"base": 0}, ValueError, "rope: base is 0.0, expected a number of at least 1e-18"),
    ({"base": 1e-300}, ValueError, "rope: base is 1e-300, expected a number of at least 1e-18"),
    ({"output_scale": 1e39}, ValueError, r"output_scale is 1e.39, expected a finite number of f32"),
    ({"pairing": "pairs"}, ValueError, "rope: pairing is 'pairs', expected 'halves' or 'interleaved'"),
])
def test_rope_refuses_in_sentences(change, error, sentence):
    with pytest.raises(error, match=sentence):
        heddle.rope(**({"x": drawn(B, T, N, H)} | change))


# ---- Norms


@pytest.mark.parametrize("dtype", [*LOW, np.float64])
@pytest.mark.parametrize("shape", [(N, H), (H,), (1,)])
def test_norms(shape, dtype):
    x = (drawn(B, 2 * T, N, H, dtype=np.float64)[..., :shape[-1]] * 3 + 50).astype(dtype)[:, ::2]
    weight, bias = drawn(*shape), drawn(*shape, dtype=np.float64)
    axes, wide = tuple(range(-len(shape), 0)), x.astype(np.float64)
    root = np.sqrt((wide**2).mean(axes, keepdims=True) + 1e-5)
    away = wide - wide.mean(axes, keepdims=True)
    deviation = np.sqrt((away**2).mean(axes, keepdims=True) + 1e-3)
    agree(heddle.rms_norm(x, weight), wide / root * weight)
    agree(heddle.layer_norm(x, weight, bias, 1e-3), away / deviation * weight + bias)
    agree(heddle.layer_norm(x, weight.astype(dtype), eps=1e-3), away / deviation * weight.astype(dtype).astype(np.float64), dtype)
    assert heddle.rms_norm(x[:0], weight).shape == x[:0].shape


@pytest.mark.parametrize("dtype", [*LOW, np.float64])
def test_norms_of_long_rows(dtype):
    """Their sums are as exact as those of few numbers; equal ones, as 16 bits have them, round one way each time."""
    x, weight = (drawn(2, 1 << 16) + 3).astype(dtype), np.ones(1 << 16, np.promote_types(dtype, np.float32))
    for norm, away in ((heddle.rms_norm, x.astype(np.float64)),
                       (heddle.layer_norm, np.stack([row - math.fsum(row) / row.size for row in x.astype(np.float64)]))):
        root = np.sqrt([[math.fsum(row**2) / row.size + 1e-5] for row in away])
        far = np.abs(away) > 0.5 * root  # of others, rounding the mean is most of the error
        off = np.abs(norm(x, weight, eps=1e-5) * root - away)[far] / np.abs(away)[far]
        assert off.max() < 4 * np.finfo(weight.dtype).eps


@pytest.mark.parametrize("arguments, error, sentence", [
    ((drawn(3, 4), drawn(3)), ValueError, r"weight has shape \(3,\), expected the last dims of x, whose shape is \(3, 4\)"),
    ((drawn(3, 4), np.float32(1)), TypeError, "weight is .*, expected an array"),
    ((drawn(3, 4), np.arange(4)), TypeError, "weight has dtype int64, expected float64 or float32"),
    ((drawn(3, 4), drawn(4), drawn(3)), ValueError, r"layer_norm: bias has shape \(3,\), expected that of weight, \(4,\)"),
    ((drawn(3, 4), drawn(4), None, -1.0), ValueError, "eps is -1.0, expected a finite number of at least 0"),
    ((drawn(3, 4), drawn(4), None, "x"), TypeError, "eps is of type str, expected a number"),
])
def test_norms_refuse_in_sentences(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        heddle.layer_norm(*arguments)


# ---- Arrays of other libraries


class Array:
    """An array of a library that has DLPack and Python's array API, and shares nothing else with NumPy's."""

    dtype, device = "float32", "cpu"

    def __init__(self, of):
        self._of = of

    def __dlpack__(self, **options):
        return self._of.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._of.__dlpack_device__()

    def __array_namespace__(self):
        return Namespace


class Namespace:
    float32 = "float32"

    @staticmethod
    def empty(shape, dtype, device):
        assert device == "cpu"
        return Array(np.empty(shape, dtype))

    asarray = Array


def test_arrays_with_dlpack():
    q, k, v = rows()
    o = heddle.attention(*map(Array, (q, k, v)))
    assert type(o) is Array
    np.testing.assert_array_equal(np.from_dlpack(o), heddle.attention(q, k, v))
    x = Array(q.swapaxes(0, 3))  # its rows do not lie side by side
    np.testing.assert_array_equal(np.from_dlpack(heddle.attention(x, x, x)), heddle.attention(*[q.swapaxes(0, 3).copy()] * 3))
    np.testing.assert_array_equal(np.from_dlpack(heddle.rope(Array(q))), heddle.rope(q))
    one = Array(q[..., :1])
    np.testing.assert_array_equal(np.from_dlpack(heddle.rms_norm(one, np.ones(1, np.float32))),
                                  heddle.rms_norm(q[..., :1], np.ones(1, np.float32)))


class Refused:
    """An array that its library does not hand on; or hands on as something else."""

    def __init__(self, failure=None):
        self._failure = failure

    def __dlpack__(self, **options):
        if self._failure is not None:
            raise self._failure
        return 3

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("given, sentence", [
    (Refused(BufferError("it has gradients")), "a Refused, is not handed on by its library: it has gradients, expected an array"),
    (Refused(RuntimeError()), "is not handed on by its library: RuntimeError, expected an array with DLPack"),
    (Refused(), "a Refused, has a __dlpack__ that gives no DLPack capsule"),
    (None, "is of type NoneType, expected an array"),
])
def test_what_is_no_array_of_any_library(given, sentence):
    q, k, v = rows()
    for call, what in ((lambda: heddle.attention(q, given, v), "attention: k"), (lambda: heddle.rope(given), "rope: x"),
                       (lambda: heddle.rms_norm(q, given), "rms_norm: weight"), (lambda: heddle.layer_norm(given, k), "layer_norm: x")):
        with pytest.raises(TypeError) as refusal:
            call()
        assert str(refusal.value).startswith(what) and sentence in str(refusal.value)


def test_numbers_that_no_float_holds():
    with pytest.raises(ValueError, match="scale is an int of 1329 bits, expected a number that a float holds"):
        heddle.attention(*rows(), scale=10**400)
    with pytest.raises(ValueError, match="eps is an int of 1329 bits"):
        heddle.rms_norm(rows()[0], np.ones(H, np.float32), eps=10**400)


def test_arrays_of_jax_are_served_by_heddle_jax():
    import jax
    import jax.numpy as jnp

    q, k, v = map(jnp.asarray, rows())
    o = heddle.attention(q, k, v, causal=True)
    assert isinstance(o, jax.Array)
    agree(np.asarray(o), formula(*map(np.asarray, (q, k, v)), visible=j <= i)[0])
    gradient = jax.jit(jax.grad(lambda x: heddle.rms_norm(heddle.rope(x), jnp.ones(H)).sum()))(q)
    assert gradient.shape == q.shape


def test_a_library_without_empty_is_a_sentence():
    class Bare:
        def __init__(self, of):
            self.__dlpack__, self.__dlpack_device__ = of.__dlpack__, of.__dlpack_device__

    q, k, v = rows()
    with pytest.raises(TypeError, match="attention: o would be an array of test_arrays, which Heddle makes none of"):
        heddle.attention(Bare(q), k, v)
