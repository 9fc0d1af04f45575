"""RotaryEmbedding of both domains in sessions of onnxruntime, run by Heddle: beside onnxruntime's own kernel, and beside f64."""

import ml_dtypes
import numpy as np
import onnx_node
import pytest
from test_onnxruntime import MICROSOFT, ONNX, counted, known_dims, words  # noqa: F401


def rotated(x, cos, sin, ids, interleaved):
    """x [batch, heads, rows, columns] in f64; tables by position, or by entry and row if ids is None."""
    cos, sin = (table.astype(np.float64)[ids] if ids is not None else table.astype(np.float64) for table in (cos, sin))
    cos, sin, half, x = cos[:, None], sin[:, None], cos.shape[-1], x.astype(np.float64)
    lo, hi = (np.s_[..., :2 * half:2], np.s_[..., 1:2 * half:2]) if interleaved else (
        np.s_[..., :half], np.s_[..., half:2 * half])
    y = x.copy()
    y[lo], y[hi] = x[lo] * cos - x[hi] * sin, x[hi] * cos + x[lo] * sin
    return y


def draw_rotation(domain, *, flat=True, part=None, interleaved=0, ids="each", dtype=np.float32, heads=3, size=16):
    """A node, its inputs, and what is right in f64.

    ids: "each", or "other": of com.microsoft the position at which all entries start, of ONNX tables by entry and row.
    """
    if ids == "other":
        ids = "start" if domain else "rows"
    rng = np.random.default_rng(41)
    batch, rows, positions = 2, 5, 12
    x, half = rng.standard_normal((batch, heads, rows, size)).astype(dtype), (part or size) // 2
    dims = (batch, rows, half) if ids == "rows" else (positions, half)
    angles = rng.uniform(0, 6, dims)
    cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    places = {"each": rng.integers(0, positions, (batch, rows)), "start": np.array([4]), "rows": None}[ids]
    exact = rotated(x, cos, sin, 4 + np.arange(rows)[None].repeat(batch, 0) if ids == "start" else places, interleaved)
    if flat:
        x, exact = (array.transpose(0, 2, 1, 3).reshape(batch, rows, -1).copy() for array in (x, exact))
    attributes = dict(interleaved=interleaved) | (dict(num_heads=heads) if flat or part else {})
    attributes |= dict(rotary_embedding_dim=part) if part else {}
    if domain:
        inputs = {"input": x, "position_ids": places, "cos_cache": cos, "sin_cache": sin}
    else:
        inputs = {"X": x, "cos_cache": cos, "sin_cache": sin} | ({"position_ids": places} if places is not None else {})
    names = ("input", "position_ids", "cos_cache", "sin_cache") if domain else ("X", "cos_cache", "sin_cache", "position_ids")
    return onnx_node.Node("RotaryEmbedding", domain, names, ("Y",), attributes, 21 if domain else 23), inputs, exact


ROTATIONS = [dict(), dict(flat=False), dict(interleaved=1), dict(part=8), dict(part=6, interleaved=1, flat=False),
             dict(size=40), dict(ids="other"), dict(ids="other", flat=False, part=8)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("options", ROTATIONS, ids=str)
@pytest.mark.parametrize("domain", ["com.microsoft", ""])
def test_rotary_embedding(domain, options, dtype, counted):  # noqa: F811
    node, inputs, exact = draw_rotation(domain, dtype=dtype, **options)
    ours = {"Y": np.full(exact.shape, np.nan, dtype)}
    node.run(inputs, ours, MICROSOFT if domain else ONNX)
    counted(1, domain or "ai.onnx")
    close = {np.float32: 1e-6, np.float16: 2e-3}.get(dtype, 2e-2)
    np.testing.assert_allclose(ours["Y"].astype(float), exact, rtol=close, atol=close)


@pytest.mark.parametrize("options", ROTATIONS, ids=str)
@pytest.mark.parametrize("domain", ["com.microsoft", ""])
def test_rotary_embedding_agrees_with_onnxruntime(domain, options):
    node, inputs, exact = draw_rotation(domain, **options)
    ours, theirs = ({"Y": np.full(exact.shape, np.nan, np.float32)} for _ in range(2))
    node.run(inputs, ours, MICROSOFT if domain else ONNX)
    node.run(inputs, theirs)
    np.testing.assert_allclose(ours["Y"], theirs["Y"], rtol=1e-5, atol=1e-6)


def test_dims_known_before_a_run_are_those_of_the_run_agrees_with_onnxruntime():
    for options in ROTATIONS:
        for domain, library in (("com.microsoft", MICROSOFT), ("", ONNX)):
            node, inputs, exact = draw_rotation(domain, **options)
            assert known_dims(node, inputs, {"Y": exact.astype(np.float32)}, library) == exact.shape


@pytest.mark.parametrize("domain", ["com.microsoft", ""])
@pytest.mark.parametrize("place", [-1, 12, 2**40])
def test_a_position_outside_the_tables_is_refused(domain, place):
    node, inputs, exact = draw_rotation(domain)
    inputs["position_ids"][1, 3] = place
    results = {"Y": np.full(exact.shape, 7, np.float32)}
    with pytest.raises(Exception) as raised:
        node.run(inputs, results, MICROSOFT if domain else ONNX)
    assert f"position_ids value {place} at index 8 is out of range [0, 12)" in str(raised.value)
    assert (results["Y"] == 7).all()


@pytest.mark.parametrize("options, change, sentence", [
    (dict(ids="other"), dict(position_ids=np.array([8])),
     "base value 8 with sequence_length 5 exceeds cos/sin cache range [0, 12)"),
    (dict(), dict(position_ids=np.zeros((2, 4), np.int64)),
     "Input 'position_ids' has dims [2, 4], expected batch_size and sequence_l"),
    (dict(), dict(position_ids=np.zeros((2, 5, 1), np.int64)),
     "'position_ids' is expected to have 0, 1, or 2 dimensions, got 3"),
    (dict(), dict(sin_cache=np.zeros((12, 7), np.float32)),
     "'cos_cache' and 'sin_cache' should have the same shape, got [12, 8] and"),
    (dict(), dict(num_heads=5), "The hidden size must be a multiple of the number of heads. Got 48 and 5"),
    (dict(), dict(num_heads=2), "'cos_cache' dimension 1 should be same as head_size / 2 or rotary_embedding_dim / 2, got 8"),
    (dict(), dict(num_heads=0, rotary_embedding_dim=8), "num_heads must be provided if rotary_embedding_dim is specified"),
    (dict(), dict(rotary_embedding_dim=7), "rotary_embedding_dim must be even and not negative. Got 7"),
], ids=words)
def test_rotary_embedding_says_what_is_wrong(options, change, sentence):
    node, inputs, exact = draw_rotation("com.microsoft", **options)
    for name, value in change.items():
        (inputs if isinstance(value, np.ndarray) else node.attributes)[name] = value
    with pytest.raises(Exception) as raised:
        node.run(inputs, {"Y": np.zeros(exact.shape, np.float32)}, MICROSOFT)
    assert sentence in str(raised.value)


def test_rows_of_tables_are_counted_as_far_as_numbers_are_exact():
    """Without ids a table has a row for each entry and row of X, whose number is computed in f32."""
    node, _, _ = draw_rotation("", ids="rows", flat=False)
    batch, rows = 2, 2**23 + 1
    inputs = {"X": np.ones((batch, 1, rows, 2), np.float32), "cos_cache": np.ones((batch, rows, 1), np.float32),
              "sin_cache": np.zeros((batch, rows, 1), np.float32)}
    results = {"Y": np.full((batch, 1, rows, 2), 7, np.float32)}
    with pytest.raises(Exception, match="cos_cache has 16777218 rows, and without position_ids 16777216 are counted"):
        node.run(inputs, results, ONNX)
    assert (results["Y"] == 7).all()
