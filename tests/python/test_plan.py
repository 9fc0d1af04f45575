"""heddle.Plan: a graph's plan run from Python on arrays of numpy."""

import numpy as np
import pytest

import heddle

B, H, S, D = 2, 3, 40, 16
IO = [B, H, S, D]


def graph(**attributes):
    made = heddle.Graph(io="f32")
    strides = [H * S * D, S * D, D, 1]
    ports = {name: made.tensor(name, IO, strides, uid=uid) for uid, name in ((7, "q"), (3, "k"), (9, "v"))}
    made.node("sdpa", **ports, o=made.tensor("o", uid=5), **attributes)
    return made


def attention(q, k, v, scale):
    s = np.einsum("bhqd,bhkd->bhqk", q, k, dtype=np.float64) * scale
    s[..., np.triu(np.ones(s.shape[2:], bool), 1)] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("given", [lambda g: g, lambda g: g.text], ids=["graph", "text"])
def test_runs_on_the_callers_memory(given):
    plan = heddle.Plan(given(graph(attn_scale=0.25, right_bound=0)), "cpu")
    assert plan.inputs == (3, 7, 9) and plan.outputs == (5,)
    assert plan.description
    rng = np.random.default_rng()
    q, k, v = (rng.standard_normal(IO, np.float32) for _ in range(3))
    o, workspace = np.full(IO, np.nan, np.float32), np.empty(max(plan.workspace_bytes, 1), np.uint8)
    addresses = {uid: array.ctypes.data for uid, array in ((5, o), (7, q), (3, k), (9, v))}
    plan.execute(addresses, workspace.ctypes.data)
    np.testing.assert_allclose(o, attention(q, k, v, 0.25), rtol=1e-4, atol=1e-5)


def test_a_missing_address_is_an_error_and_nothing_is_written():
    plan = heddle.Plan(graph(), "cpu")
    arrays = {uid: np.zeros(IO, np.float32) for uid in (3, 7)}
    o, workspace = np.full(IO, np.nan, np.float32), np.empty(max(plan.workspace_bytes, 1), np.uint8)
    addresses = {5: o.ctypes.data, **{uid: array.ctypes.data for uid, array in arrays.items()}}
    with pytest.raises(heddle.Error, match="v"):
        plan.execute(addresses, workspace.ctypes.data)
    assert np.isnan(o).all()


def made_ready(plan):
    """Memory for the plan: random inputs and an output of NaN, and the workspace."""
    rng = np.random.default_rng()
    arrays = {uid: rng.standard_normal(IO, np.float32) for uid in plan.inputs} | {5: np.full(IO, np.nan, np.float32)}
    workspace = np.empty(max(plan.workspace_bytes, 1), np.uint8)
    return arrays, {uid: array.ctypes.data for uid, array in arrays.items()}, workspace


def test_one_plan_takes_growing_lengths():
    plan = heddle.Plan(graph(attn_scale=0.25, right_bound=0), "cpu")
    arrays, addresses, workspace = made_ready(plan)
    for length in (1, 2, 17, S):
        arrays[5][:] = np.nan
        plan.execute(addresses, workspace.ctypes.data, shapes={uid: [B, H, length, D] for uid in plan.inputs})
        expected = attention(*(arrays[uid][:, :, :length] for uid in (7, 3, 9)), 0.25)
        np.testing.assert_allclose(arrays[5][:, :, :length], expected, rtol=1e-4, atol=1e-5)
        assert np.isnan(arrays[5][:, :, length:]).all()


def test_late_strides():
    plan = heddle.Plan(graph(attn_scale=0.25, right_bound=0), "cpu")
    arrays, addresses, workspace = made_ready(plan)
    shapes, strides = {uid: (B, H, 8, D) for uid in (3, 5, 7, 9)}, {5: (H * 8 * D, D, H * D, 1)}
    plan.execute(addresses, workspace.ctypes.data, shapes=shapes, strides=strides)
    o = arrays[5].ravel()[:B * 8 * H * D].reshape(B, 8, H, D).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(o, attention(*(arrays[uid][:, :, :8] for uid in (7, 3, 9)), 0.25), rtol=1e-4, atol=1e-5)
    assert np.isnan(arrays[5].ravel()[B * 8 * H * D:]).all()


@pytest.mark.parametrize("late, error, sentence", [
    ({"shapes": {7: [B, H, S + 1, D]}}, heddle.Error, "expected none to exceed those that it was planned with"),
    ({"shapes": {7: [B, H, -1, D]}}, heddle.Error, "expected each from 1 to"),
    ({"shapes": {3: [B, H, 5, D]}}, heddle.Error, "length"),
    ({"shapes": {6: [B, H, 5, D]}}, heddle.Error, "A shape is given for uid 6, expected that of a tensor of the graph"),
    ({"shapes": {7: range(9)}}, heddle.Error, "The shape of uid 7 has 9 dims, expected 0 to 8"),
    ({"shapes": {7: [B, H, 5, D]}, "strides": {7: [1]}}, heddle.Error, "expected as many strides as dims"),
    ({"strides": {7: [1, 1, 1, 1]}}, ValueError, "strides for uid 7, but no shape"),
    ({"shapes": {7: [B, H, 2.5, D]}}, TypeError, "Plan.execute takes shapes and strides as dicts of uids to integers"),
    ({"shapes": {7: [B, H, 2**64 + 5, D]}}, ValueError, f"A number of a shape is {2**64 + 5}, expected 64 bits"),
    ({"shapes": {7 - 2**64: [B, H, 5, D]}}, ValueError, f"A number of a shape is {7 - 2**64}, expected 64 bits"),
    ({"shapes": {7: IO}, "strides": {7: [1, 1, 1, 2**63]}}, ValueError, f"A number of a shape is {2**63}, expected 64 bits"),
    ({"shapes": [7]}, TypeError, "Plan.execute takes shapes and strides as dicts of uids to integers"),
])
def test_late_sizes_that_do_not_fit_write_nothing(late, error, sentence):
    plan = heddle.Plan(graph(), "cpu")
    arrays, addresses, workspace = made_ready(plan)
    with pytest.raises(error, match=sentence):
        plan.execute(addresses, workspace.ctypes.data, **late)
    assert np.isnan(arrays[5]).all()


@pytest.mark.parametrize("arguments", [([3, 7, 9],), ({"k": 3},), ({}, 0, "stream"), (None,)])
def test_what_is_no_pack_is_refused(arguments):
    with pytest.raises(TypeError, match="Plan.execute takes a dict of uids to arrays or addresses"):
        heddle.Plan(graph(), "cpu").execute(*arguments)
    with pytest.raises(TypeError, match="of type bytes, expected a Graph or its text form"):
        heddle.Plan(graph().text.encode(), "cpu")


@pytest.mark.parametrize("cut", [3 + 2**64, 3 - 2**64])
def test_uids_of_more_bits_are_nobodys(cut):
    plan = heddle.Plan(graph(), "cpu")
    arrays, addresses, workspace = made_ready(plan)
    addresses[cut] = addresses.pop(3)
    with pytest.raises(ValueError, match=f"A uid is {cut}, expected 64 bits"):
        plan.execute(addresses, workspace.ctypes.data)
    with pytest.raises(ValueError, match=f"A uid is {cut}, expected 64 bits"):
        plan.launcher(tuple(addresses))
    assert np.isnan(arrays[5]).all()


@pytest.mark.parametrize("arguments", [({3: "k"},), ({3: 1.5},), ({}, "workspace")])
def test_what_is_no_address_is_refused(arguments):
    with pytest.raises((TypeError, ValueError), match="expected an (array .* or an )?address, "):
        heddle.Plan(graph(), "cpu").execute(*arguments)


def test_arrays_in_place_of_addresses():
    plan = heddle.Plan(graph(attn_scale=0.25, right_bound=0), "cpu")
    arrays, _, workspace = made_ready(plan)
    plan.execute(arrays, workspace)
    np.testing.assert_allclose(arrays[5], attention(*(arrays[uid] for uid in (7, 3, 9)), 0.25), rtol=1e-4, atol=1e-5)
    # The memory may have other dims, as [B, S, H, D] has; with shapes of their own, arrays may be larger than they say.
    arrays[5][:] = np.nan
    plan.execute(arrays | {7: arrays[7].ravel()}, workspace, shapes={uid: [B, H, 8, D] for uid in plan.inputs})
    expected = attention(*(arrays[uid][:, :, :8] for uid in (7, 3, 9)), 0.25)
    np.testing.assert_allclose(arrays[5][:, :, :8], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_dims", [
    lambda x: x.reshape(B, H * S, D), lambda x: x.reshape(1, B, H, S, D, 1), lambda x: x.transpose(1, 0, 2, 3), np.ravel,
])
def test_arrays_of_other_dims_whose_elements_lie_alike(of_dims):
    plan = heddle.Plan(graph(attn_scale=0.25, right_bound=0), "cpu")
    arrays, _, workspace = made_ready(plan)
    plan.execute({uid: of_dims(array) for uid, array in arrays.items()}, workspace)
    np.testing.assert_allclose(arrays[5], attention(*(arrays[uid] for uid in (7, 3, 9)), 0.25), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("uid, change, error, sentence", [
    (7, lambda x: x.astype(np.float64), ValueError, "'q' .uid 7. is given an array of float64, expected float32"),
    (5, lambda x: x.astype(np.float64), ValueError, "'o' .uid 5. is given an array of float64, expected float32"),
    (3, lambda x: x.astype(np.float16), ValueError, "an array of float16, expected float32"),
    (3, lambda x: x.astype(np.complex64), ValueError, "one that Heddle has no name for, expected float32"),
    (9, lambda x: x.astype(">f4"), TypeError, "another byte order"),
    (9, np.asfortranarray, ValueError, r"strides \[1, 2, 6, 240\], expected \[1920, 640, 16, 1\]"),
    (9, lambda x: x[..., ::-1], ValueError, r"strides \[1920, 640, 16, -1\], expected"),
    (7, lambda x: x[:1], ValueError, r"an array of shape \[1, 3, 40, 16\], expected \[2, 3, 40, 16\]"),
    (7, lambda x: np.empty((B, H, S, 2 * D), np.float32)[..., D:].reshape(-1)[1:], ValueError, "an array of shape"),
    (9, lambda x: np.asfortranarray(x.reshape(B, H, S * D)), ValueError, r"\[2, 3, 640\] with strides \[1, 2, 6\], expected"),
    (9, lambda x: np.repeat(x.reshape(B, H * S, D), 2, 1)[:, ::2], ValueError, r"with strides \[3840, 32, 1\], expected"),
    (9, lambda x: np.repeat(x.ravel(), 2)[::2], ValueError, r"an array of shape \[3840\] with strides \[2\], expected"),
    (9, lambda x: np.repeat(x, 4, 0)[3:1:-1, None], ValueError, r"strides \[-1920, .*, 1\], expected"),
    (9, lambda x: np.repeat(x, 8, 0)[4::-1], ValueError, r"shape \[5, 3, 40, 16\] with strides .*, expected none below 0"),
    (5, lambda x: (x.setflags(write=False), x)[1], ValueError, "may not be written"),
    (7, lambda x: np.ma.masked_less(x, 0), TypeError, "'q' .uid 7. is an array with a mask of its own, expected one without"),
    (7, lambda x: x.astype(object), TypeError, "'q' .uid 7. is an array of Python's objects, expected one of numbers"),
])
def test_an_array_that_is_not_the_tensors_is_refused_and_nothing_is_written(uid, change, error, sentence):
    plan = heddle.Plan(graph(), "cpu")
    arrays, _, workspace = made_ready(plan)
    arrays[uid] = change(arrays[uid])
    with pytest.raises(error, match=sentence):
        plan.execute(arrays, workspace)
    assert np.isnan(arrays[5]).all()
    with pytest.raises(ValueError, match="The workspace has 3 bytes, expected"):
        plan.execute(made_ready(plan)[0], workspace[:3])


@pytest.mark.parametrize("laid, error, sentence", [
    (lambda all_of, n: all_of[n - 1::-1], ValueError, r"an array of shape \[\d+\] with strides \[-1\], expected one without gaps"),
    (lambda all_of, n: all_of[:2 * n:2], ValueError, r"with strides \[2\], expected one without gaps"),
    (lambda all_of, n: np.lib.stride_tricks.as_strided(all_of, (n,), (0,)), ValueError, r"strides \[0\], expected one without"),
    (lambda all_of, n: np.empty(1, object), TypeError, "The workspace is an array of Python's objects"),
])
def test_a_workspace_is_written_from_its_first_byte_on(laid, error, sentence):
    plan = heddle.Plan(graph(), "cpu")
    arrays, _, workspace = made_ready(plan)
    all_of = np.full(2 * len(workspace), 7, np.uint8)
    with pytest.raises(error, match=sentence):
        plan.execute(arrays, laid(all_of, len(workspace)))
    assert (all_of == 7).all() and np.isnan(arrays[5]).all()
    in_fortrans_order = np.empty((4, -(-len(workspace) // 4)), np.uint8, "F")
    plan.execute(arrays, in_fortrans_order)
    assert np.isfinite(arrays[5]).all()


class OfCuda:
    """What CuPy's arrays and Numba's say of themselves."""

    def __init__(self, typestr, steps):
        self.dtype = np.dtype(typestr)
        self.__cuda_array_interface__ = {"shape": (B, H, S, D), "typestr": typestr, "data": (4096, False), "strides": steps,
                                         "version": 3}


@pytest.mark.parametrize("typestr, steps, error, sentence", [
    ("<f4", (7680, 2560, 66, 4), ValueError, r"'q' .uid 7. has elements of 4 bytes at strides of \(7680, 2560, 66, 4\), exp"),
    (">f4", None, TypeError, "'q' .uid 7. has data type >f4, of another byte order"),
    ("<f8", None, ValueError, "'q' .uid 7. is given an array of float64, expected float32"),
    ("<f4", None, ValueError, "'q' .uid 7. is given an array on the device cuda, expected cpu"),
])
def test_what_a_gpus_array_says_of_itself(typestr, steps, error, sentence):
    plan = heddle.Plan(graph(), "cpu")
    arrays, _, workspace = made_ready(plan)
    with pytest.raises(error, match=sentence):
        plan.execute(arrays | {7: OfCuda(typestr, steps)}, workspace)
    assert np.isnan(arrays[5]).all()


def test_refusals_are_sentences():
    with pytest.raises(heddle.Error) as refusal:
        heddle.Plan(graph(left_bound=-1), "cpu")
    assert "Left bound" in str(refusal.value)
    with pytest.raises(heddle.Error):
        heddle.Plan("{", "cpu")
    with pytest.raises(heddle.Error, match="invalid literal; last read: '[?]'"):
        heddle.Plan("\u00e9", "cpu")  # the sentence quotes its first byte
    for device in ("tpu", 0, None, ["cpu"]):
        with pytest.raises(ValueError, match="There is no device .*, expected one of cpu, cuda"):
            heddle.Plan(graph(), device)


def test_another_library_is_no_heddle(monkeypatch):
    from heddle import _library

    monkeypatch.setenv("HEDDLE_LIBRARY", np.linalg._umath_linalg.__file__)
    with pytest.raises(OSError, match="has no heddle_last_error: it is another library, or Heddle's of another version"):
        _library.load.__wrapped__()


def test_a_plan_for_a_gpu_that_is_not_here():
    plan = heddle.Plan(graph(), "sm_90a")
    assert plan.inputs == (3, 7, 9) and "threads" in plan.description
    arrays = [np.full(IO, np.nan, np.float32) for _ in range(4)]
    workspace = np.empty(max(plan.workspace_bytes, 1), np.uint8)
    with pytest.raises(heddle.Error, match="of an architecture, not of a device, and runs nothing") as refusal:
        plan.execute(dict(zip((3, 5, 7, 9), (x.ctypes.data for x in arrays), strict=True)), workspace.ctypes.data)
    assert refusal.value.status == "INVALID_CUDA_DEVICE" and np.isnan(arrays[1]).all()
    for wrong, sentence in (("sm_90", "run sm_90a"), ("sm_70", "need sm_80"), ("sm_\0", "no null character")):
        with pytest.raises(ValueError, match=sentence):
            heddle.Plan(graph(), wrong)
